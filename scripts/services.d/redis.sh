# shellcheck shell=bash
# Redis, and a Redis Cluster of three nodes without replicas. Only the cluster's configuration
# is written to disk. Sourced by scripts/services.

redis_start() {
  launch_redis redis
}

redis_answers() {
  [[ $(redis_cli redis ping 2>&1) == PONG ]]
}

# cluster_start starts the stopped nodes, and creates the cluster the first time.
cluster_start() {
  local node
  for node in 1 2 3; do
    mkdir -p -- "$STATE/cluster/$node" || return
    launch_redis "cluster/$node" --cluster-enabled yes --cluster-config-file nodes.conf \
      --cluster-node-timeout 5000 || return
  done
  [[ -e $STATE/cluster/complete ]] || cluster_join
}

cluster_join() {
  local node nodes=() deadline=$((SECONDS + 20))
  for node in 1 2 3; do
    until [[ $(redis_cli "cluster/$node" ping 2>&1) == PONG ]]; do
      ((SECONDS < deadline)) && alive cluster || return
      sleep 0.05
    done
    nodes+=("127.0.0.1:$(port "cluster/$node")")
  done
  inside cluster/1 timeout 60 redis-cli --cluster create "${nodes[@]}" --cluster-replicas 0 --cluster-yes
}

cluster_answers() {
  local node answer
  for node in 1 2 3; do
    answer=$(redis_cli "cluster/$node" cluster info 2>&1) || return 1
    [[ $answer == *cluster_state:ok* && $answer == *cluster_slots_ok:16384* ]] || return 1
  done
}

# launch_redis PROCESS [OPTION...]: starts a Redis server. set-proc-title keeps its arguments, by
# which pid_of finds it.
launch_redis() {
  local process=$1
  shift
  pid_of "$process" >/dev/null && return
  launch "$process" redis-server --bind 127.0.0.1 --port "$(port "$process")" \
    --dir "$STATE/$process/" --save '' --appendonly no --maxmemory-policy noeviction \
    --set-proc-title no "$@"
}

# redis_cli PROCESS COMMAND...
redis_cli() {
  local process=$1
  shift
  inside "$process" timeout 3 redis-cli -h 127.0.0.1 -p "$(port "$process")" "$@"
}
