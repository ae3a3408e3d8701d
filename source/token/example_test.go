package token_test

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/freshet/freshet/source/token"
)

// The request for a token of the grant client-credentials (RFC 6749, section 4.4).
func ExampleConfig_NewRequest() {
	config := token.Config{Grant: token.ClientCredentials, TokenURL: "https://auth.example.com/token", ClientID: "my-app", Scopes: []string{"read"}}
	secrets := map[string]string{"clientSecret": "s3cret"}

	req, err := config.NewRequest(context.Background(), secrets, "", time.Now())
	if err != nil {
		fmt.Println(err)
		return
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(req.Method, req.URL)
	fmt.Println(string(body))
	// Output:
	// POST https://auth.example.com/token
	// client_id=my-app&client_secret=s3cret&grant_type=client_credentials&scope=read
}
