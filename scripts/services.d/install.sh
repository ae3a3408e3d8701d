# shellcheck shell=bash
# Installing what local processes need: Debian's packages, and Kafka's jars.
# Debian may start a PostgreSQL and a Redis of its own with the packages, on their
# usual ports: those are neither used nor touched. Sourced by scripts/services.

# find_programs puts what is installed, but not in PATH, there.
find_programs() {
  local bin
  if bin=$(postgres_bin); then PATH=$bin:$PATH; fi
  [[ -z ${JAVA_HOME:-} ]] || PATH=$JAVA_HOME/bin:$PATH
}

# missing_packages NAME...: prints what Debian calls them.
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
    say "missing: ${packages[*]} (Debian's names). Install them, or start Docker."
    return 1
  fi
  if ((UID != 0)); then
    say "missing: ${packages[*]}. Run as root:"
    say "  apt-get update && apt-get install -y --no-install-recommends ${packages[*]}"
    return 1
  fi
  say "installing ${packages[*]}"
  # A package's own service, started here, must not hold on to our lock or output.
  {
    apt-get -q update &&
      DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${packages[@]}"
  } </dev/null 3>&- 4>&- 9>&- || {
    say "apt-get could not install ${packages[*]}: see above"
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
  say "everything is installed for $*"
}
