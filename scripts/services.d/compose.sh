# shellcheck shell=bash
# The services as containers, if a Docker daemon responds. Sourced by scripts/services.

# choose_runtime decides once for each $STATE whether Docker runs the services.
choose_runtime() {
  [[ -s $STATE/runtime ]] && return
  if docker_answers; then
    echo compose >"$STATE/runtime"
  else
    echo local >"$STATE/runtime"
  fi
}

docker_answers() {
  docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1
}

by_compose() {
  [[ -s $STATE/runtime && $(<"$STATE/runtime") == compose ]]
}

# compose COMMAND...: runs docker compose with one project for each $STATE.
compose() {
  local project
  project=freshet-services-$(cksum <<<"$STATE" | cut -d ' ' -f 1)
  FRESHET_POSTGRES_PORT=$(port postgres) \
    FRESHET_REDIS_PORT=$(port redis) \
    FRESHET_CLUSTER_PORT_1=$(port cluster/1) \
    FRESHET_CLUSTER_PORT_2=$(port cluster/2) \
    FRESHET_CLUSTER_PORT_3=$(port cluster/3) \
    FRESHET_KAFKA_PORT=$(port kafka) \
    FRESHET_KAFKA_VERSION=$KAFKA_VERSION \
    FRESHET_KAFKA_CLUSTER_ID=$KAFKA_CLUSTER_ID \
    docker compose --project-name "$project" --file "$HERE/services.compose.yml" "$@" 3>&- 9>&-
}

# containers NAME...: prints the names of the services' containers.
containers() {
  local name
  for name; do processes "$name"; done | tr ' /' '\n-'
}

# compose_create creates or starts all containers with one command, because concurrent runs of
# 'compose up' disturb each other.
compose_create() {
  local names
  by_compose || return 0
  mapfile -t names < <(containers "$@")
  compose up --detach "${names[@]}"
}

# start_container NAME: the steps after the start of its containers.
start_container() {
  mkdir -p -- "$STATE/$1" || return
  if [[ $1 == cluster && ! -e $STATE/cluster/complete ]]; then cluster_join; fi
}

compose_down() {
  by_compose || return 0
  compose down --volumes
}

compose_log() {
  local names
  mapfile -t names < <(containers "$1")
  compose logs --no-color "${names[@]}"
}
