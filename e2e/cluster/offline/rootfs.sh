# shellcheck shell=bash
# The node's root file system: Debian (debootstrap), the entry point and units of kind's module, and the built binaries.

NODE_PACKAGES=systemd,systemd-sysv,dbus,conntrack,iptables,nftables,iproute2,ethtool,util-linux,mount,kmod,libseccomp2,e2fsprogs
NODE_PACKAGES+=,bash,ca-certificates,curl,jq,procps,runc,containernetworking-plugins,socat,ebtables

# node_rootfs RECIPE: creates $CACHE/offline/rootfs, or keeps it if it was created with the same recipe.
node_rootfs() {
  local root=$CACHE/offline/rootfs
  [ "$(cat "$root/.recipe" 2>/dev/null)" = "$1" ] && return
  is_root || die "building a node image without a container registry needs root (debootstrap)"
  all_commands debootstrap jq || apt_install debootstrap jq
  say "building the node's root file system (Debian $NODE_SUITE)"
  rm -rf "$root"
  debootstrap --variant=minbase --include="$NODE_PACKAGES" "$NODE_SUITE" "$root" >"$CACHE/offline/debootstrap.log" ||
    die "debootstrap failed: $(tail -n 3 "$CACHE/offline/debootstrap.log")"
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
  rootfs_kind_files "$root"
  rootfs_units "$root"
  rootfs_binaries "$root"
  rootfs_network "$root"
  echo "$1" >"$root/.recipe"
}

# kind's entry point, units and containerd configuration: images/base/files of its module.
rootfs_kind_files() {
  local root=$1 files
  files=$(cd "$CACHE/offline" && go mod download -json "sigs.k8s.io/kind@$KIND_MODULE" | jq -r .Dir)/images/base/files
  cp -r --no-preserve=mode "$files/etc/." "$root/etc/"
  mkdir -p "$root/kind/bin" "$root/kind/manifests"
  install -m 755 "$files"/usr/local/bin/* "$root/usr/local/bin/"
  install -m 755 "$files"/kind/bin/* "$root/kind/bin/"
  echo "$KUBERNETES_MODULE" >"$root/kind/version"
  # kind applies these two manifests on start. Both are placeholders, because the network below is static and the node
  # stores no data.
  local manifest
  for manifest in default-cni default-storage; do
    printf 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: kube-system}\n' "$manifest" \
      >"$root/kind/manifests/$manifest.yaml"
  done
}

# Removes the same units as kind's Dockerfile, because a container needs few of Debian's units.
rootfs_units() {
  local root=$1 unit
  rm -f "$root"/lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service \
    "$root"/lib/systemd/system/multi-user.target.wants/* "$root"/etc/systemd/system/*.wants/* \
    "$root"/lib/systemd/system/local-fs.target.wants/* "$root"/lib/systemd/system/sockets.target.wants/*udev* \
    "$root"/lib/systemd/system/sockets.target.wants/*initctl* "$root"/lib/systemd/system/basic.target.wants/*
  echo ReadKMsg=no >>"$root/etc/systemd/journald.conf"
  ln -sf /usr/lib/systemd/systemd "$root/sbin/init"
  for unit in kubelet containerd undo-mount-hacks; do chroot "$root" systemctl enable "$unit.service" 2>/dev/null; done
  chroot "$root" systemctl mask systemd-binfmt.service 2>/dev/null
}

rootfs_binaries() {
  local root=$1 program
  for program in containerd ctr containerd-shim-runc-v2; do
    install -m 755 "$OFFLINE_BIN/$program" "$root/usr/local/bin/"
  done
  for program in kubelet kubeadm kubectl; do install -m 755 "$OFFLINE_BIN/$program" "$root/usr/bin/"; done
  install -m 755 "$CLUSTER_DIR/offline/runc-lowcap" "$root/usr/local/sbin/runc-lowcap"
  "$OFFLINE_BIN/ctr" oci spec |
    jq '.hooks.createContainer += [{"path": "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' \
      >"$root/etc/containerd/cri-base.json"
}

# Installs the plugins of the pods' network. The configuration pods.conflist is mounted for each cluster. It has a
# single static range and no bridge, because the cluster has one node.
rootfs_network() {
  local root=$1
  mkdir -p "$root/etc/kubernetes/manifests" "$root/opt/cni/bin" "$root/etc/cni/net.d"
  cp "$root"/usr/lib/cni/* "$root/opt/cni/bin/"
}
