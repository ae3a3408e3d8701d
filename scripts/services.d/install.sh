# shellcheck shell=bash
# Installation of Debian packages and Kafka's jars for local processes. Debian may start its
# own PostgreSQL and Redis on their default ports; these are not used. Sourced by
# scripts/services.

# find_programs adds installed programs to PATH.
find_programs() {
  local bin
  if bin=$(postgres_bin); then PATH=$bin:$PATH; fi
  [[ -z ${JAVA_HOME:-} ]] || PATH=$JAVA_HOME/bin:$PATH
}

# missing_packages NAME...: prints the Debian packages that the services need.
missing_packages() {
  local name
  for name; do
    case $name in
      postgres) postgres_bin >/dev/null || echo postgresql ;;
      redis | cluster)
        command -v redis-server >/dev/null || echo redis-server
        command -v redis-cli >/dev/null || echo redis-tools
        ;;
      kafka)
        command -v java >/dev/null || echo default-jre-headless
        have_kafka_jars || command -v mvn >/dev/null || echo maven
        ;;
    esac
  done | sort -u
}

install_missing() {
  local packages
  by_compose && return
  mapfile -t packages < <(missing_packages "$@")
  ((${#packages[@]} > 0)) || return 0
  if ! command -v apt-get >/dev/null; then
    say "missing packages: ${packages[*]} (names in Debian). Install them, or start Docker."
    return 1
  fi
  if ((UID != 0)); then
    say "missing packages: ${packages[*]}. Run as root:"
    say "  apt-get update && apt-get install -y --no-install-recommends ${packages[*]}"
    return 1
  fi
  say "installing ${packages[*]}"
  # A service that a package starts must not inherit the lock or the output.
  {
    apt-get -q update &&
      DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${packages[@]}"
  } </dev/null 3>&- 4>&- 9>&- || {
    say "apt-get failed to install ${packages[*]}: see above"
    return 1
  }
  find_programs
}

install_all() {
  local name
  if docker_answers; then
    say "Docker runs the services: nothing to install"
    return 0
  fi
  install_missing "$@" || return 1
  for name; do
    [[ $name != kafka ]] || kafka_jars || return 1
  done
  say "installed: all programs for $*"
}
