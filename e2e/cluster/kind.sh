# shellcheck shell=bash
# The cluster itself: created, reused while healthy, deleted. Its kubeconfig is a file of its own; ~/.kube is never touched.

# cluster_up: a healthy cluster on the chosen node image, of the configuration that is written here.
cluster_up() {
  local config=kind.yaml
  [ -z "$NODE_IS_OURS" ] || config=kind-own-node.yaml
  if cluster_exists; then
    if [ "$(cat "$CACHE/$CLUSTER_NAME/$config" 2>/dev/null)" != "$(filled "$config")" ]; then
      say "the cluster $CLUSTER_NAME has another configuration: making it anew"
    elif cluster_healthy; then
      say "reusing the cluster $CLUSTER_NAME"
      service_addresses_stay_inside
      return
    else
      say "the cluster $CLUSTER_NAME does not answer: making it anew"
    fi
    cluster_down
  fi
  mkdir -p "$CACHE/$CLUSTER_NAME"
  [ -z "$NODE_IS_OURS" ] || filled pods.conflist >"$CACHE/$CLUSTER_NAME/pods.conflist"
  filled "$config" >"$CACHE/$CLUSTER_NAME/$config"
  config=$CACHE/$CLUSTER_NAME/$config
  say "creating the cluster $CLUSTER_NAME on $NODE_IMAGE_USED"
  quietly kind create cluster --name "$CLUSTER_NAME" --image "$NODE_IMAGE_USED" --config "$config" \
    --kubeconfig "$KUBECONFIG_FILE" --wait 120s
  service_addresses_stay_inside
  say "waiting for the cluster's DNS"
  kubectl --namespace kube-system wait deployment/coredns --for=condition=Available --timeout=300s >/dev/null
}

# filled FILE: the file with this cluster's networks and places in it. A node's pods have the first /24 of the pods'
# network of IPv4, and the first /64 of that of IPv6.
filled() {
  local text network ranges='' routes=''
  for network in ${POD_SUBNET//,/ }; do
    case $network in
      *:*) ranges+=", [{\"subnet\": \"${network%/*}/64\"}]" routes+=', {"dst": "::/0"}' ;;
      *) ranges+=", [{\"subnet\": \"${network%/*}/24\"}]" routes+=', {"dst": "0.0.0.0/0"}' ;;
    esac
  done
  text=$(cat "$CLUSTER_DIR/$1")
  text=${text//@IP_FAMILY@/$IP_FAMILY}
  text=${text//@POD_SUBNET@/$POD_SUBNET}
  text=${text//@NODE_RANGES@/${ranges#, }}
  text=${text//@NODE_ROUTES@/${routes#, }}
  text=${text//@SERVICE_SUBNET@/$SERVICE_SUBNET}
  text=${text//@FOLDER@/$CACHE/$CLUSTER_NAME}
  printf '%s\n' "$text"
}

# A Service's address that kube-proxy has not set up yet would be looked for on the network outside, where a transparent
# proxy may even accept the connection. Such packets are dropped, and sent again by TCP; those of known Services are
# rewritten before they come here.
service_addresses_stay_inside() {
  local network program rule
  for network in ${SERVICE_SUBNET//,/ }; do
    program=iptables
    [[ $network != *:* ]] || program=ip6tables
    rule=(FORWARD --destination "$network" --jump DROP)
    docker exec "$CLUSTER_NAME-control-plane" "$program" --check "${rule[@]}" 2>/dev/null ||
      docker exec "$CLUSTER_NAME-control-plane" "$program" --insert "${rule[@]}"
  done
}

# No pipe into `grep -q`: it leaves at the first match, and with pipefail a kind that still writes then counts as failed.
cluster_exists() {
  local all
  all=$(kind get clusters 2>&1) || die "kind does not list its clusters: $all"
  [[ $'\n'$all$'\n' == *$'\n'"$CLUSTER_NAME"$'\n'* ]]
}

# cluster_healthy: the node is ready and DNS is available, asked for through a fresh kubeconfig.
cluster_healthy() {
  kind export kubeconfig --name "$CLUSTER_NAME" --kubeconfig "$KUBECONFIG_FILE" >/dev/null 2>&1 &&
    kubectl --request-timeout=10s get --raw /readyz >/dev/null 2>&1 &&
    kubectl wait node --all --for=condition=Ready --timeout=30s >/dev/null 2>&1 &&
    kubectl --namespace kube-system wait deployment/coredns --for=condition=Available --timeout=60s >/dev/null 2>&1
}

cluster_down() {
  quietly kind delete cluster --name "$CLUSTER_NAME" --kubeconfig "$KUBECONFIG_FILE"
  rm -rf "$KUBECONFIG_FILE" "${CACHE:?}/$CLUSTER_NAME"
}
