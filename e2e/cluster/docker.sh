# shellcheck shell=bash
# Uses the running docker daemon. If none runs, starts one. This file never changes an existing docker configuration.

DOCKER_CONFIG_FILE=${DOCKER_CONFIG_FILE:-/etc/docker/daemon.json}
DOCKER_RUN=${DOCKER_RUN:-/var/run}
RUNC_LOWCAP=/usr/local/sbin/runc-lowcap

# docker_up: installs docker if it is missing, and starts it if it does not run.
docker_up() {
  all_commands docker || apt_install docker.io iptables
  docker info >/dev/null 2>&1 && return
  is_root || die "the docker daemon does not answer ('docker info' fails). Start it, or add this user to the group docker."
  all_commands dockerd || apt_install docker.io iptables
  if [ -d /run/systemd/system ]; then
    systemctl start docker && docker_answers 60 && return
    die "docker did not start: see 'journalctl -u docker'"
  fi
  runc_wrapper
  forget_process "$DOCKER_RUN/docker.pid" dockerd
  forget_process "$DOCKER_RUN/docker/containerd/containerd.pid" containerd
  say "starting dockerd"
  mkdir -p "$CACHE"
  # dockerd gets its own PATH without the cache folder, because the cache contains a containerd and a shim of another
  # version.
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin setsid nohup dockerd >"$CACHE/dockerd.log" 2>&1 </dev/null &
  docker_answers 60 || die "dockerd did not start. The last lines of its log, $CACHE/dockerd.log:
$(tail -n "$LOG_LINES_SHOWN" "$CACHE/dockerd.log")"
}

# forget_process FILE PROGRAM: removes a file with the id of a process, unless this process is PROGRAM. After a reboot
# another process can have the id. dockerd would then refuse to start, because it takes that process for itself.
forget_process() {
  local id
  [ -e "$1" ] || return 0
  id=$(cat "$1")
  [ "$(cat "/proc/$id/comm" 2>/dev/null)" = "$2" ] || rm -f "$1"
}

# docker_answers SECONDS: waits until `docker info` works.
docker_answers() {
  local deadline=$((SECONDS + $1))
  until docker info >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || return 1
    sleep 0.5
  done
}

# runc_wrapper: without CAP_SYS_RESOURCE no privileged container starts ("unable to apply caps"). On such a machine, if
# docker has no configuration, a runc wrapper without this capability becomes the default runtime.
runc_wrapper() {
  lacks_sys_resource || return 0
  if [ -e "$DOCKER_CONFIG_FILE" ]; then
    say "this machine lacks CAP_SYS_RESOURCE, so privileged containers may not start; $DOCKER_CONFIG_FILE exists and is not changed"
    return 0
  fi
  all_commands jq || apt_install jq
  say "this machine lacks CAP_SYS_RESOURCE: docker gets a runc wrapper without it ($DOCKER_CONFIG_FILE)"
  install -D -m 755 "$CLUSTER_DIR/offline/runc-lowcap" "$RUNC_LOWCAP"
  mkdir -p "$(dirname "$DOCKER_CONFIG_FILE")"
  printf '{"default-runtime":"runc-lowcap","runtimes":{"runc-lowcap":{"path":"%s"}}}\n' "$RUNC_LOWCAP" >"$DOCKER_CONFIG_FILE"
}

# lacks_sys_resource: whether bit 24 of the bounding set is 0 (capabilities(7)).
lacks_sys_resource() {
  local bounding
  bounding=$(awk '$1 == "CapBnd:" { print $2 }' /proc/self/status)
  (((0x$bounding >> 24 & 1) == 0))
}
