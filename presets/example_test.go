package presets_test

import (
	"bytes"
	"fmt"

	"github.com/freshet/freshet/presets"
)

func ExampleAll() {
	text := presets.All()["hubspot"]
	fmt.Println(bytes.Contains(text, []byte("baseURL: https://api.hubapi.com")))
	// Output: true
}

func ExampleNames() {
	fmt.Println(presets.Names()[:4])
	// Output: [court data-go-kr discord github-app]
}
