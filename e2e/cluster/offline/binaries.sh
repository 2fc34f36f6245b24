# shellcheck shell=bash
# The programs of a Kubernetes node, built by Go from module sources into $OFFLINE_BIN.
# A binary is kept while its build information names the pinned version (`go version -m`).

KUBERNETES_PROGRAMS=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm kubectl)
# The plugins in kubeadm's Corefile. With all plugins, half of the packages of CoreDNS are SDKs of clouds and tracers.
COREDNS_PLUGINS=(cache errors forward health kubernetes loadbalance loop metrics ready reload)

node_binaries() {
  need_go "the node image ${NODE_IMAGE[$(machine)]}"
  local program
  for program in "${KUBERNETES_PROGRAMS[@]}"; do kubernetes_binary "$program"; done
  etcd_binary
  coredns_binary
  for program in containerd ctr containerd-shim-runc-v2; do
    built_from "$OFFLINE_BIN/$program" github.com/containerd/containerd/v2 "$CONTAINERD_MODULE" || {
      say "building $program $CONTAINERD_MODULE"
      go_install -tags 'no_btrfs no_devmapper no_zfs no_aufs' \
        "github.com/containerd/containerd/v2/cmd/$program@$CONTAINERD_MODULE"
    }
  done
  pause_binary
}

# kubernetes_binary NAME: builds a program of k8s.io/kubernetes. `go install` cannot build it, because its go.mod
# replaces the staging modules by folders. So the module k8s.go.mod requires k8s.io/kubernetes and replaces each staging
# module by its published version.
kubernetes_binary() {
  built_from "$OFFLINE_BIN/$1" k8s.io/kubernetes "$KUBERNETES_MODULE" && return
  say "building $1 $KUBERNETES_MODULE"
  local module=$CACHE/offline/k8s version=k8s.io/component-base/version minor=${KUBERNETES_MODULE#v1.} program
  mkdir -p "$module"
  cp "$CLUSTER_DIR/offline/k8s.go.mod" "$module/go.mod"
  {
    printf '//go:build tools\n\npackage tools\n\nimport (\n'
    for program in "${KUBERNETES_PROGRAMS[@]}"; do printf '\t_ "k8s.io/kubernetes/cmd/%s"\n' "$program"; done
    printf ')\n'
  } >"$module/tools.go"
  (cd "$module" && CGO_ENABLED=0 go build -mod=mod -trimpath -o "$OFFLINE_BIN/$1" -ldflags "-s -w \
    -X $version.gitVersion=$KUBERNETES_MODULE -X $version.gitMajor=1 -X $version.gitMinor=${minor%%.*} \
    -X $version.gitTreeState=clean -X $version.buildDate=2026-01-01T00:00:00Z" "k8s.io/kubernetes/cmd/$1")
}

# etcd's server is a separate module. Its replace lines only apply if it is the main module, so it also needs a wrapper
# module.
etcd_binary() {
  built_from "$OFFLINE_BIN/etcd" go.etcd.io/etcd/server/v3 "$ETCD_MODULE" && return
  say "building etcd $ETCD_MODULE"
  wrapper_module etcd "go.etcd.io/etcd/server/v3@$ETCD_MODULE" go.etcd.io/etcd/server/v3
  (cd "$CACHE/offline/etcd" && CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags '-s -w' -o "$OFFLINE_BIN/etcd" \
    go.etcd.io/etcd/server/v3)
}

coredns_binary() {
  built_from "$OFFLINE_BIN/coredns" github.com/coredns/coredns "$COREDNS_MODULE" && return
  say "building coredns $COREDNS_MODULE"
  local module=$CACHE/offline/coredns
  wrapper_module coredns "github.com/coredns/coredns@$COREDNS_MODULE" \
    "${COREDNS_PLUGINS[@]/#/github.com/coredns/coredns/plugin/}"
  printf 'package main\n\nimport "github.com/coredns/coredns/coremain"\n\nfunc main() { coremain.Run() }\n' >"$module/main.go"
  (cd "$module" && CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags '-s -w' -o "$OFFLINE_BIN/coredns" .)
}

# wrapper_module NAME MODULE@VERSION PACKAGE...: creates the module $CACHE/offline/NAME, which imports the packages of
# the MODULE.
wrapper_module() {
  local folder=$CACHE/offline/$1 module=$2
  shift 2
  rm -rf "$folder"
  mkdir -p "$folder"
  printf 'module wrapper\n\ngo 1.26.0\n' >"$folder/go.mod"
  {
    printf 'package main\n\nimport (\n'
    printf '\t_ "%s"\n' "$@"
    printf ')\n'
  } >"$folder/imports.go"
  (cd "$folder" && go get "$module")
}

pause_binary() {
  [ "$OFFLINE_BIN/pause" -nt "$CLUSTER_DIR/offline/pause.c" ] && return
  { all_commands gcc && [ -e /usr/include/unistd.h ]; } || apt_install gcc libc6-dev
  gcc -O2 -static -o "$OFFLINE_BIN/pause" "$CLUSTER_DIR/offline/pause.c"
}
