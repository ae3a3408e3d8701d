# shellcheck shell=bash
# The same services as containers, where a Docker daemon answers. Sourced by
# scripts/services.

# choose_runtime settles once, for as long as $STATE lives, what runs the services.
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

# compose COMMAND...: one project for each $STATE.
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

# containers NAME...: what services.compose.yml calls them.
containers() {
  local name
  for name; do processes "$name"; done | tr ' /' '\n-'
}

# compose_create makes or starts all containers at once; two runs of 'compose up'
# side by side would get in each other's way.
compose_create() {
  local names
  by_compose || return 0
  mapfile -t names < <(containers "$@")
  compose up --detach "${names[@]}"
}

# start_container NAME: what is left to do once its containers run.
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
