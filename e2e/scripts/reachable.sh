# shellcheck shell=bash
# reachable HOST PORT: waits until a Service accepts connections. kube-proxy sets up a Service a short time after its
# pods are ready.
reachable() {
  until (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; do
    [ $SECONDS -lt 90 ] || { echo "$1:$2 accepts no connection within 90 s"; exit 1; }
    sleep 0.2
  done
}
