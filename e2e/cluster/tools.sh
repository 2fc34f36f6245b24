# shellcheck shell=bash
# Installs kind, helm and kubectl in $TOOLS. If the release servers answer, downloads the pinned releases and verifies
# their checksums. Otherwise builds the tools with Go. A download with a wrong checksum ends the run. In this case the
# tool is not built instead.

# tools: installs all three tools.
tools() {
  mkdir -p "$TOOLS" "$CACHE/downloads" "$OFFLINE_BIN"
  all_commands curl || apt_install curl ca-certificates
  local arch
  arch=$(machine)
  tool kind "$KIND_RELEASE" "https://github.com/kubernetes-sigs/kind/releases/download/$KIND_RELEASE/kind-linux-$arch" \
    "${KIND_SHA256[$arch]}" build_kind
  tool helm "$HELM_RELEASE" "https://get.helm.sh/helm-$HELM_RELEASE-linux-$arch.tar.gz" "${HELM_SHA256[$arch]}" build_helm
  tool kubectl "$KUBECTL_RELEASE" "https://dl.k8s.io/release/$KUBECTL_RELEASE/bin/linux/$arch/kubectl" \
    "${KUBECTL_SHA256[$arch]}" build_kubectl
}

# tool NAME VERSION URL SHA256 BUILD: provides the tool from the cache, from URL, or by the function BUILD.
tool() {
  local name=$1 version=$2 url=$3 sha256=$4 build=$5
  local kept=$CACHE/downloads/$name-$version
  if [ ! -x "$kept" ] && [ ! -x "$OFFLINE_BIN/$name" ] && answers "$url"; then
    say "downloading $name $version"
    download "$url" "$sha256" "$kept" "$name" || say "the download of $name failed; building it instead"
  fi
  if [ -x "$kept" ]; then
    ln -sfn "$kept" "$TOOLS/$name"
  else
    "$build"
    ln -sfn "$OFFLINE_BIN/$name" "$TOOLS/$name"
  fi
}

# download URL SHA256 FILE NAME: fetches the URL, verifies its checksum, unpacks NAME if it is a .tar.gz, and only then
# creates FILE. Returns 1 if the transfer failed. A wrong checksum ends the run.
download() {
  local url=$1 sha256=$2 file=$3 name=$4 part=$3.part got
  curl --fail --silent --show-error --location --connect-timeout 5 --max-time 600 --retry 2 --output "$part" "$url" || {
    rm -f "$part"
    return 1
  }
  got=$(sha256sum "$part" | cut -d' ' -f1)
  if [ "$got" != "$sha256" ]; then
    rm -f "$part"
    die "checksum mismatch of $url: got $got, expected $sha256 (e2e/cluster/versions.sh)"
  fi
  case $url in
    *.tar.gz)
      tar -xzf "$part" -O --wildcards "*/$name" >"$part.bin"
      mv "$part.bin" "$part"
      ;;
  esac
  chmod 755 "$part"
  mv "$part" "$file"
}

build_kind() {
  need_go "kind $KIND_RELEASE"
  built_from "$OFFLINE_BIN/kind" sigs.k8s.io/kind "$KIND_MODULE" && return
  say "building kind $KIND_MODULE"
  go_install "sigs.k8s.io/kind@$KIND_MODULE"
}

build_helm() {
  need_go "helm $HELM_RELEASE"
  built_from "$OFFLINE_BIN/helm" helm.sh/helm/v4 "$HELM_MODULE" && return
  say "building helm $HELM_MODULE"
  go_install "helm.sh/helm/v4/cmd/helm@$HELM_MODULE"
}

build_kubectl() {
  need_go "kubectl $KUBECTL_RELEASE"
  kubernetes_binary kubectl
}

# go_install PACKAGE@VERSION... [-tags ...]: builds static binaries into $OFFLINE_BIN.
go_install() {
  GOBIN=$OFFLINE_BIN CGO_ENABLED=0 GOFLAGS=-trimpath go install -ldflags '-s -w' "$@"
}
