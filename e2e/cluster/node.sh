# shellcheck shell=bash disable=SC2034  # NODE_IS_OURS is read by kind.sh
# The node image: kind's published one by its digest where a container registry answers, else our own, built offline.
# The answer is in NODE_IMAGE_USED and NODE_IS_OURS, for kind.sh.

# node: chooses, fetches or builds.
node() {
  local published=${NODE_IMAGE[$(machine)]}
  NODE_IS_OURS=''
  NODE_IMAGE_USED=$published
  docker image inspect "$published" >/dev/null 2>&1 && [ -z "${MUXTUNNEL_OFFLINE:-}" ] && return
  if answers https://registry-1.docker.io/v2/; then
    say "pulling $published"
    docker pull --quiet "$published" >/dev/null && return
    say "pulling $published failed; building a node image instead"
  fi
  NODE_IS_OURS=yes
  NODE_IMAGE_USED=muxtunnel/node:$KUBERNETES_MODULE-$(node_recipe)
  docker image inspect "$NODE_IMAGE_USED" >/dev/null 2>&1 && return
  say "no container registry answers: building a node image from Debian packages and Go modules (about 9 minutes the first time)"
  node_binaries
  node_rootfs "$(node_recipe)"
  node_image "$NODE_IMAGE_USED"
}

# node_recipe: a short hash of all that goes into our own node image.
node_recipe() {
  (cd "$CLUSTER_DIR" && cat versions.sh offline/*) | sha256sum | cut -c1-12
}
