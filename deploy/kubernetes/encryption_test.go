package kubernetes

import (
	"net/url"

	"sigs.k8s.io/yaml"
)

// judgeEncryption checks that no password is sent to its service in clear text.
func (in *installation) judgeEncryption() {
	type service struct {
		TLS  struct{ Enabled bool }
		SASL struct{ PasswordFile string }

		PasswordFile string
	}
	var config struct{ Kafka, Redis service }
	if err := yaml.Unmarshal([]byte(in.config), &config); err != nil {
		in.fault("freshet.yaml: %v", err)
		return
	}
	if config.Kafka.SASL.PasswordFile != "" && !config.Kafka.TLS.Enabled {
		in.fault("freshet.yaml: kafka.sasl has a password, and kafka.tls is not enabled")
	}
	if config.Redis.PasswordFile != "" && !config.Redis.TLS.Enabled {
		in.fault("freshet.yaml: redis has a password, and redis.tls is not enabled")
	}
	if u, err := url.Parse(in.database); err == nil && u.User != nil && u.Query().Get("sslmode") != "verify-full" {
		in.fault("Secret freshet-services: the database's URL has a password, and not sslmode=verify-full")
	}
}
