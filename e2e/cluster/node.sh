# shellcheck shell=bash disable=SC2034  # NODE_IS_OURS is read by kind.sh
# Provides the node image. If a container registry answers, the image is kind's published image by digest. Otherwise it
# is built locally. Sets NODE_IMAGE_USED and NODE_IS_OURS for kind.sh.

# node: reuses, pulls or builds the image. One step.
node() {
  local published=${NODE_IMAGE[$(machine)]}
  NODE_IS_OURS=''
  NODE_IMAGE_USED=$published
  if docker image inspect "$published" >/dev/null 2>&1 && [ -z "${MUXTUNNEL_OFFLINE:-}" ]; then
    step "reusing the node image"
    return
  fi
  local pulled=''
  if answers https://registry-1.docker.io/v2/; then
    step "pulling the node image"
    docker pull --quiet "$published" >"$(log_file node-image)" 2>&1 && return
    say "the pull failed; building a node image instead (about 9 min)"
    pulled=failed
  fi
  NODE_IS_OURS=yes
  NODE_IMAGE_USED=muxtunnel/node:$KUBERNETES_MODULE-$(node_recipe)
  if docker image inspect "$NODE_IMAGE_USED" >/dev/null 2>&1; then
    [ -n "$pulled" ] || step "reusing the node image"
    return
  fi
  [ -n "$pulled" ] || step "building the node image (about 9 min)"
  logged node-image node_build
}

# node_build: builds the image from Debian packages and Go modules, in 9 minutes on 2 cores with an empty cache.
node_build() {
  node_binaries
  node_rootfs "$(node_recipe)"
  node_image "$NODE_IMAGE_USED"
}

# node_recipe: prints a short hash of the inputs of the node image that is built locally.
node_recipe() {
  (cd "$CLUSTER_DIR" && cat versions.sh offline/*) | sha256sum | cut -c1-12
}
