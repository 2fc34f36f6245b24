# shellcheck shell=bash
# Creates, starts, pauses, reuses and deletes the cluster. The cluster has its own kubeconfig. The scripts never touch ~/.kube.

# Seconds in which a node that has just started may begin to answer.
STARTED_WITHIN=${STARTED_WITHIN:-180}

# cluster_up: provides a healthy cluster with the chosen node image and this configuration. One step.
cluster_up() {
  local config=kind.yaml doing=creating why=''
  [ -z "$NODE_IS_OURS" ] || config=kind-own-node.yaml
  if cluster_exists; then
    if [ "$(cat "$CACHE/$CLUSTER_NAME/$config" 2>/dev/null)" != "$(filled "$config")" ]; then
      why=', because its configuration changed'
    elif node_is_stopped; then
      step "starting the cluster $CLUSTER_NAME, because its node is stopped"
      if node_start; then
        service_addresses_stay_inside
        return
      fi
      say "the cluster does not answer after its start, so it is recreated"
      doing=''
    elif cluster_healthy || { node_is_new && cluster_answers_in_time; }; then
      step "reusing the cluster $CLUSTER_NAME"
      service_addresses_stay_inside
      return
    else
      why=', because it does not answer'
    fi
    [ -z "$doing" ] || doing=recreating
  fi
  [ -z "$doing" ] || step "$doing the cluster $CLUSTER_NAME$why"
  [ "$doing" = creating ] || cluster_down
  mkdir -p "$CACHE/$CLUSTER_NAME"
  [ -z "$NODE_IS_OURS" ] || filled pods.conflist >"$CACHE/$CLUSTER_NAME/pods.conflist"
  filled "$config" >"$CACHE/$CLUSTER_NAME/$config"
  config=$CACHE/$CLUSTER_NAME/$config
  logged "cluster-$CLUSTER_NAME" kind create cluster --name "$CLUSTER_NAME" --image "$NODE_IMAGE_USED" --config "$config" \
    --kubeconfig "$KUBECONFIG_FILE" --wait 120s
  service_addresses_stay_inside
  say "waiting for the DNS of the cluster"
  logged "cluster-$CLUSTER_NAME-dns" \
    kubectl --namespace kube-system wait deployment/coredns --for=condition=Available --timeout=300s
}

# filled FILE: prints FILE with the networks and folders of this cluster. The pods of the node use the first /24 of the
# pods' IPv4 network and the first /64 of the IPv6 network.
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

# Packets to a Service that kube-proxy has not set up yet would leave the node, and a transparent proxy could accept the
# connection. The rule below drops such packets, and TCP retransmits them later. Packets to Services that kube-proxy has
# set up get another destination before this rule.
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

# node_status: prints the status of the node's container: running, paused, exited or created.
node_status() { docker inspect --format '{{.State.Status}}' "$CLUSTER_NAME-control-plane" 2>/dev/null; }

# node_is_stopped: whether the container of the node exists and does not run, as after a reboot, or after `docker stop`
# or `docker pause`.
node_is_stopped() { [[ $(node_status) =~ ^(exited|created|paused)$ ]]; }

# node_start: starts the container of the node, and waits until the cluster answers. The two clusters can start in any
# order: if docker gives the node another address, the node's entrypoint writes this address into its configuration.
node_start() {
  local verb=start
  [ "$(node_status)" != paused ] || verb=unpause
  docker $verb "$CLUSTER_NAME-control-plane" >/dev/null && cluster_answers_in_time
}

# cluster_pause: pauses the node if it runs. While a node starts, runc may be unable to freeze it.
cluster_pause() {
  local attempt
  for attempt in 1 2 3 4 5; do
    [ "$(node_status)" = running ] || return 0
    if docker pause "$CLUSTER_NAME-control-plane" >/dev/null 2>&1; then return; fi
    [ "$attempt" = 5 ] || sleep "${PAUSE_AGAIN:-2}"
  done
  say "the cluster $CLUSTER_NAME cannot be paused, and continues to run"
}

# node_is_new: whether the container of the node has started less than $STARTED_WITHIN seconds ago. docker starts some
# containers again after a reboot.
node_is_new() {
  local since
  since=$(docker inspect --format '{{.State.StartedAt}}' "$CLUSTER_NAME-control-plane" 2>/dev/null) || return 1
  since=$(date --date="$since" +%s 2>/dev/null) || return 1
  [ $(($(date +%s) - since)) -lt "$STARTED_WITHIN" ]
}

# cluster_answers_in_time: waits until the cluster is healthy, for at most $STARTED_WITHIN seconds.
cluster_answers_in_time() {
  local deadline=$((SECONDS + STARTED_WITHIN))
  until cluster_healthy; do
    [ $SECONDS -lt $deadline ] || return 1
    sleep 2
  done
}

# The output of kind is not piped into `grep -q`, because grep exits at the first match. With pipefail, the write error
# of kind would then fail the check.
cluster_exists() {
  local all
  all=$(kind get clusters 2>&1) || die "cannot list the clusters of kind: $all"
  [[ $'\n'$all$'\n' == *$'\n'"$CLUSTER_NAME"$'\n'* ]]
}

# cluster_healthy: whether the node is ready and DNS is available, according to a fresh kubeconfig.
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
