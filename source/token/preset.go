package token

// presets are the settings of well-known token endpoints, by name.
var presets = map[string]Config{
	"reddit": { //nolint:gosec // URLs, not secrets
		Grant: ClientCredentials, TokenURL: "https://www.reddit.com/api/v1/access_token", ClientAuth: "basic",
	},
	"hubspot": { //nolint:gosec // URLs, not secrets
		Grant: RefreshToken, TokenURL: "https://api.hubapi.com/oauth/v1/token",
		Consent: Consent{AuthorizeURL: "https://app.hubspot.com/oauth/authorize", RedirectURL: "http://localhost:8765/callback"},
	},
	"jira": { //nolint:gosec // URLs, not secrets
		Grant: RefreshToken, TokenURL: "https://auth.atlassian.com/oauth/token", Scopes: []string{"read:jira-work", "offline_access"},
		Consent: Consent{
			AuthorizeURL: "https://auth.atlassian.com/authorize", RedirectURL: "http://localhost:8765/callback",
			Params: map[string]string{"audience": "api.atlassian.com", "prompt": "consent"},
		},
	},
	"github-app": {Grant: JWTBearer, Value: "body:token", Expires: "body:expires_at"},
	"google":     {Grant: JWTBearer, TokenURL: "https://oauth2.googleapis.com/token"}, //nolint:gosec // a URL, not a secret
}

// UnmarshalYAML fills settings that the file leaves out from the preset.
func (c *Config) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Config
	var p plain
	if err := unmarshal(&p); err != nil {
		return err
	}
	if preset, known := presets[p.Preset]; known {
		name, jwt := p.Preset, p.JWT
		p = plain(preset)
		if err := unmarshal(&p); err != nil {
			return err
		}
		p.Preset, p.JWT = name, jwt
		if name == "github-app" && jwt != nil && jwt.SendIn == "" {
			p.JWT.SendIn = "header"
		}
	}
	*c = Config(p)
	return nil
}
