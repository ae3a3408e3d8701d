# shellcheck shell=bash
# Apache Kafka: one broker that is also the controller (KRaft), in the version of
# kafka/pom.xml. Sourced by scripts/services.

KAFKA_POM=$HERE/kafka/pom.xml
KAFKA_VERSION=$(sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' "$KAFKA_POM")
KAFKA_JARS=${XDG_CACHE_HOME:-~/.cache}/freshet/kafka-$KAFKA_VERSION
# 'freshet-services' in base64. Kafka accepts any id in the form of a UUID.
KAFKA_CLUSTER_ID=ZnJlc2hldC1zZXJ2aWNlcw

# have_kafka_jars: succeeds if all jars are cached in these versions. The copy of the pom is
# written last.
have_kafka_jars() {
  cmp -s -- "$KAFKA_POM" "$KAFKA_JARS/pom.xml"
}

# kafka_jars downloads the jars if they are not cached. The lock is for runs with another
# $STATE, which share the cache.
kafka_jars() {
  have_kafka_jars && return
  mkdir -p -- "${KAFKA_JARS%/*}" || return
  (
    flock 8
    have_kafka_jars && exit
    say "kafka: downloading the jars of version $KAFKA_VERSION with Maven"
    partial=$KAFKA_JARS.partial
    rm -rf -- "$partial"
    mvn -q -B -Dstyle.color=never -f "$KAFKA_POM" \
      org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies -DincludeScope=runtime \
      -DoutputDirectory="$partial" &&
      cp -- "$KAFKA_POM" "$partial/pom.xml" &&
      rm -rf -- "$KAFKA_JARS" && mv -T -- "$partial" "$KAFKA_JARS"
  ) 8>"$KAFKA_JARS.lock" && return
  echo "Maven failed to download the jars of Kafka into $KAFKA_JARS: see above, and try again."
  return 1
}

kafka_start() {
  java_is_new_enough && kafka_jars || return
  # Paths in kafka.properties are relative to this folder, because Kafka misreads commas and
  # non-ASCII characters in paths.
  cd -- "$STATE/kafka" || return
  kafka_properties >kafka.properties || return
  if [[ ! -e complete ]]; then
    kafka_java kafka.tools.StorageTool format --standalone \
      --cluster-id "$KAFKA_CLUSTER_ID" --config kafka.properties || return
  fi
  pid_of kafka >/dev/null && return
  launch kafka java -Xms256m -Xmx512m -Dlog4j2.configurationFile="$HERE/kafka/log4j2.properties" \
    -cp "$KAFKA_JARS/*" kafka.Kafka "$STATE/kafka/kafka.properties"
}

# kafka_answers sends a Metadata request (key 3, version 1, correlation id 1, no client id, no
# topics) and expects one broker in the reply: length, correlation id and number of brokers,
# four bytes each. A Java client would take a second.
kafka_answers() {
  local broker reply
  { exec {broker}<>"/dev/tcp/127.0.0.1/$(port kafka)"; } 2>/dev/null || return 1
  printf '\0\0\0\x0e\0\x03\0\x01\0\0\0\x01\0\0\0\0\0\0' >&"$broker"
  reply=$(timeout 3 head -c 12 <&"$broker" | od -An -tu1 -j4)
  exec {broker}>&-
  [[ $reply =~ ^\ +0\ +0\ +0\ +1\ +0\ +0\ +0\ +1$ ]]
}

# kafka_java CLASS ARGUMENT...: runs one of Kafka's tools.
kafka_java() {
  if by_compose; then
    inside kafka java -cp '/opt/kafka/libs/*' "$@"
  else
    timeout 60 java -Dlog4j2.configurationFile="$HERE/kafka/log4j2.properties" -cp "$KAFKA_JARS/*" "$@"
  fi
}

kafka_properties() {
  local broker controller
  broker=127.0.0.1:$(port kafka)
  controller=127.0.0.1:$(port kafka/controller)
  cat <<END
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://$broker,CONTROLLER://$controller
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=$controller
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=data
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
END
}

java_is_new_enough() {
  local major
  major=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
  ((${major:-0} >= 17)) && return
  echo "Kafka $KAFKA_VERSION needs Java 17 or newer, but $(command -v java) is version ${major:-unknown}." \
    "Set JAVA_HOME, or install openjdk-17-jre-headless."
  return 1
}
