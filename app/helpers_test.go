package app

import (
	"os"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eventTimeout bounds every wait for an expected event.
const eventTimeout = 2 * time.Minute

// characters returns n keys: prefix0, prefix1 and so on.
func characters(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = prefix + strconv.Itoa(i)
	}
	return keys
}

// loadConfig returns the configuration of a file, which may be "", and the environment. Its errors
// show secrets.
func loadConfig(file string, env []string, sources Sources) (Config, error) {
	if file == "" {
		return parseConfig("", nil, env, sources)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return Config{}, err
	}
	return parseConfig(file, text, env, sources)
}
