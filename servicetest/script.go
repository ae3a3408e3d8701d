package servicetest

import (
	"flag"
	"log"
	"os"

	"github.com/freshet/freshet/lua"
)

// LimiterScriptFlag defines the flag -limiter-script, for tests of mutations of the script
// limiter_acquire. After flag.Parse, the returned function replaces the script by the flag's file.
func LimiterScriptFlag() (replace func()) {
	file := flag.String("limiter-script", "", "file whose text replaces the script limiter_acquire")
	return func() {
		if *file == "" {
			return
		}
		text, err := os.ReadFile(*file)
		if err != nil {
			log.Fatal(err)
		}
		lua.LimiterAcquire = lua.NewScript(lua.LimiterAcquire.Name, string(text))
	}
}
