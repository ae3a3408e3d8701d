package token

import "cmp"

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
	"github-app": {Grant: JWTBearer, Value: "body:token", Expires: "body:expires_at", JWT: &JWT{SendIn: "header"}},
	"google":     {Grant: JWTBearer, TokenURL: "https://oauth2.googleapis.com/token"}, //nolint:gosec // a URL, not a secret
}

// UnmarshalYAML fills settings that the file leaves out from the preset.
func (c *Config) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Config
	var own plain
	if err := unmarshal(&own); err != nil {
		return err
	}
	preset, known := presets[own.Preset]
	if !known {
		*c = Config(own)
		return nil
	}
	all := plain(preset)
	all.JWT = nil // so that unmarshal does not change the section of the preset
	if err := unmarshal(&all); err != nil {
		return err
	}
	if all.JWT != nil && preset.JWT != nil {
		all.JWT.SendIn = cmp.Or(all.JWT.SendIn, preset.JWT.SendIn)
	}
	*c = Config(all)
	return nil
}
