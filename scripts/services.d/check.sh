# shellcheck shell=bash
# Tests of scripts/services with a separate set of services in a temporary folder. Sourced by
# scripts/services.

check() {
  local begin addresses
  begin=$(milliseconds)
  mkdir -p -- "${STATE%/*}" && STATE=$(mktemp -d -- "${STATE%/*}/freshet-services-check.XXXXXX") || exit 1
  # mktemp denies access to other users, but PostgreSQL runs as another user than root.
  chmod 711 -- "$STATE"
  export FRESHET_SERVICES_DIR=$STATE
  trap check_cleanup EXIT

  expect "up starts all four" check_up
  addresses=$(check_env)
  eval "$addresses"
  expect "postgres creates a database and a table" check_postgres
  expect "redis sets and gets, and evicts nothing" check_redis
  expect "the cluster sets and gets keys on all three nodes" check_cluster
  expect "kafka creates a topic, stores records and returns them" check_kafka
  expect "signal stops a service and continues it" check_signal
  expect "a second up changes nothing" check_up_again
  expect "env omits services that were killed with -9" check_kill
  expect "up restarts them" check_up
  expect "the addresses are the same" check_same_addresses "$addresses"
  expect "postgres still has its table" check_postgres_kept
  expect "redis works again" check_redis
  expect "the cluster works again" check_cluster
  expect "kafka still has its records" check_kafka_kept
  expect "down stops everything and removes the folder" check_down
  say "check: all passed after $(seconds_since "$begin") s"
}

expect() {
  local what=$1
  shift
  "$@" || die "check: FAILED: $what"
  say "check: $what"
}

check_cleanup() {
  [[ ! -e $STATE ]] || "$SELF" down
}

check_up() {
  [[ $("$SELF" up) == "$(check_env)" ]] && [[ $(check_env | wc -l) == 4 ]]
}

# check_env prints the output of env, if it contains only safe export lines.
check_env() {
  local lines
  lines=$("$SELF" env) || return
  [[ -z $lines ]] && return
  grep -qvE '^export FRESHET_TEST_(POSTGRES|REDIS|REDIS_CLUSTER|KAFKA)=[a-z0-9:/.,@?=]+$' <<<"$lines" && return 1
  echo "$lines"
}

check_same_addresses() {
  [[ $(check_env) == "$1" ]]
}

check_up_again() {
  local before
  before=$("$SELF" status)
  check_up && [[ $("$SELF" status) == "$before" ]]
}

check_signal() {
  "$SELF" signal redis STOP && ! redis_answers && "$SELF" signal redis CONT && redis_answers
}

check_kill() {
  local process pid
  for process in postgres redis cluster/2 kafka; do
    if by_compose; then
      compose kill --signal KILL "${process/\//-}"
    else
      pid=$(pid_of "$process") && kill -9 "$pid" && ended "$process" 5 || return
    fi
  done
  [[ -z $(check_env) ]]
}

check_postgres() {
  sql 'create database another' && sql 'create table kept as select 42 as answer' &&
    [[ $(sql 'show max_connections') == 200 && $(sql 'show fsync') == on ]] && check_postgres_kept
}

check_postgres_kept() {
  [[ $(sql 'select answer from kept') == 42 ]]
}

sql() {
  inside postgres psql -XAtq -v ON_ERROR_STOP=1 -c "$1" "$FRESHET_TEST_POSTGRES"
}

check_redis() {
  local at=(-h "${FRESHET_TEST_REDIS%:*}" -p "${FRESHET_TEST_REDIS#*:}")
  [[ $(inside redis redis-cli "${at[@]}" set greeting hello) == OK ]] &&
    [[ $(inside redis redis-cli "${at[@]}" get greeting) == hello ]] &&
    [[ $(inside redis redis-cli "${at[@]}" config get maxmemory-policy) == *noeviction ]]
}

# The slots of b, c and a are 3300, 7365 and 15495: one on each node.
check_cluster() {
  local key first last
  first=${FRESHET_TEST_REDIS_CLUSTER%%,*}
  last=${FRESHET_TEST_REDIS_CLUSTER##*,}
  for key in b c a; do
    [[ $(inside cluster/1 redis-cli -c -h 127.0.0.1 -p "${first#*:}" set "$key" "of $key") == OK ]] || return
  done
  for key in b c a; do
    [[ $(inside cluster/3 redis-cli -c -h 127.0.0.1 -p "${last#*:}" get "$key") == "of $key" ]] || return
  done
}

check_kafka() {
  kafka_java org.apache.kafka.tools.TopicCommand --bootstrap-server "$FRESHET_TEST_KAFKA" \
    --create --topic check --partitions 1 &&
    seq 3 | kafka_java org.apache.kafka.tools.ConsoleProducer --bootstrap-server "$FRESHET_TEST_KAFKA" \
      --topic check &&
    check_kafka_kept
}

check_kafka_kept() {
  [[ $(kafka_java org.apache.kafka.tools.consumer.ConsoleConsumer --bootstrap-server "$FRESHET_TEST_KAFKA" \
    --topic check --from-beginning --max-messages 3 --timeout-ms 30000) == $'1\n2\n3' ]]
}

check_down() {
  local base
  base=$(<"$STATE/base-port")
  "$SELF" down && [[ ! -e $STATE ]] && nothing_left && free_block "$base"
}

# nothing_left: succeeds if no process has the folder as its working directory or in its
# arguments. (PostgreSQL's child processes show only their working directory.)
nothing_left() {
  local process arguments
  for process in /proc/[0-9]*; do
    { mapfile -d '' arguments <"$process/cmdline"; } 2>/dev/null || continue
    [[ "${arguments[*]}" != *"$STATE/"* && $(readlink "$process/cwd") != "$STATE"* ]] && continue
    say "still running: ${process#/proc/} ${arguments[*]}"
    return 1
  done
}
