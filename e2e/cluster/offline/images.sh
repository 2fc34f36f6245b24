# shellcheck shell=bash
# The images of the control plane, each with one static binary, and the node image that contains these images.

# node_image TAG: builds the node image from the root file system and the binaries.
node_image() {
  local tag=$1 base=muxtunnel/node-base program node
  local images=("registry.k8s.io/etcd:$ETCD_TAG" "registry.k8s.io/coredns/coredns:$COREDNS_TAG"
    "registry.k8s.io/pause:$PAUSE_TAG" "registry.k8s.io/kube-proxy:$KUBERNETES_MODULE")
  say "building the control plane's images"
  for program in kube-apiserver kube-controller-manager kube-scheduler; do
    binary_image "registry.k8s.io/$program:$KUBERNETES_MODULE" "$program"
    images+=("registry.k8s.io/$program:$KUBERNETES_MODULE")
  done
  binary_image "registry.k8s.io/etcd:$ETCD_TAG" etcd
  binary_image "registry.k8s.io/coredns/coredns:$COREDNS_TAG" coredns
  binary_image "registry.k8s.io/pause:$PAUSE_TAG" pause
  kube_proxy_image
  say "building the node image $tag"
  tar -C "$CACHE/offline/rootfs" --exclude=./.recipe -c . | docker import - "$base" >/dev/null
  node=$(docker run --detach --privileged --entrypoint /bin/sleep "$base" infinity)
  if ! node_import "$node" "${images[@]}"; then
    docker rm --force "$node" >/dev/null
    die "the control plane's images could not be imported into the node image"
  fi
  docker commit -c 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]' -c 'ENV container=docker' "$node" "$tag" >/dev/null
  docker rm --force "$node" >/dev/null
}

# node_import CONTAINER IMAGE...: imports the images into the container's containerd, which it starts and stops.
node_import() {
  local node=$1 deadline=$((SECONDS + 60))
  shift
  docker exec --detach "$node" sh -c 'echo $$ >/run/containerd.pid; exec /usr/local/bin/containerd'
  until docker exec "$node" ctr version >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || return 1
    sleep 0.2
  done
  docker save "$@" | docker exec --interactive "$node" \
    ctr --namespace k8s.io images import --all-platforms --no-unpack --digests - >/dev/null || return 1
  # A commit while containerd writes its database would store an incomplete database.
  docker exec "$node" sh -c 'pid=$(cat /run/containerd.pid); kill "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done; rm /run/containerd.pid'
}

# binary_image TAG PROGRAM: builds an image of a static binary, which is the entry point.
binary_image() {
  local tag=$1 program=$2 folder
  folder=$(mktemp -d)
  mkdir -p "$folder/usr/local/bin" "$folder/tmp"
  cp "$OFFLINE_BIN/$program" "$folder/usr/local/bin/"
  image_of "$folder" "$tag" -c "ENTRYPOINT [\"/usr/local/bin/$program\"]"
}

# kube-proxy calls iptables, nft and conntrack. These programs and their libraries are copied from the node's root file
# system.
kube_proxy_image() {
  local root=$CACHE/offline/rootfs folder program library libraries
  libraries=usr/lib/$(uname -m)-linux-gnu
  folder=$(mktemp -d)
  mkdir -p "$folder"/{usr/local/bin,usr/sbin,usr/lib64,run,tmp,etc,"$libraries"}
  ln -s usr/sbin "$folder/sbin"
  ln -s usr/lib "$folder/lib"
  ln -s usr/lib64 "$folder/lib64"
  cp "$OFFLINE_BIN/kube-proxy" "$folder/usr/local/bin/"
  cp -a "$root/$libraries/xtables" "$folder/$libraries/"
  for program in xtables-nft-multi conntrack nft; do
    cp "$root/usr/sbin/$program" "$folder/usr/sbin/"
    while read -r library; do
      mkdir -p "$folder$(dirname "$library")"
      cp -L "$root$library" "$folder$library"
    done < <(chroot "$root" ldd "/usr/sbin/$program" | grep -o '/[^ ]*')
  done
  cp -L "$root/$libraries/libm.so.6" "$folder/$libraries/"
  for program in {iptables,ip6tables}{,-save,-restore}; do ln -s xtables-nft-multi "$folder/usr/sbin/$program"; done
  image_of "$folder" "registry.k8s.io/kube-proxy:$KUBERNETES_MODULE"
}

# image_of FOLDER TAG [IMPORT OPTION...]: imports the folder and removes it.
image_of() {
  local folder=$1 tag=$2
  shift 2
  tar -C "$folder" --owner=0 --group=0 -c . |
    docker import -c 'ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin' "$@" - "$tag" >/dev/null
  rm -rf "$folder"
}
