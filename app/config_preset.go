package app

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/freshet/freshet/presets"
)

// Preset is the name of a preset, or empty.
type Preset string

// UnmarshalYAML reads the name of a preset.
func (p *Preset) UnmarshalYAML(unmarshal func(any) error) error {
	var name string
	if err := unmarshal(&name); err != nil {
		return err
	}
	if !slices.Contains(presets.Names(), name) {
		return fmt.Errorf("there is no preset %q; the presets are %s", name, strings.Join(presets.Names(), ", "))
	}
	*p = Preset(name)
	return nil
}

// withPreset returns the YAML text of a source: the settings of a preset, overridden by the settings
// that unmarshal decodes. Sections and settings by name are merged; a list replaces the whole list.
func withPreset(name Preset, unmarshal func(any) error) ([]byte, error) {
	var own map[string]any
	if err := unmarshal(&own); err != nil {
		return nil, err
	}
	all, err := presetSettings(name)
	if err != nil {
		return nil, err
	}
	mergeSettings(all, own)
	return yaml.Marshal(all)
}

// presetSettings returns the settings of a preset. If it names another preset, it overrides the settings
// of that preset.
func presetSettings(name Preset) (map[string]any, error) {
	var own map[string]any
	if err := yaml.Unmarshal(presets.All()[string(name)], &own); err != nil {
		return nil, fmt.Errorf("preset %s: %w", name, err)
	}
	base, changes := own["preset"].(string)
	if !changes {
		return own, nil
	}
	all, err := presetSettings(Preset(base))
	if err == nil {
		mergeSettings(all, own)
	}
	return all, err
}

// mergeSettings copies the settings of the map `from` into the map `all`. It merges sections, and skips
// settings without a value.
func mergeSettings(all, from map[string]any) {
	for name, value := range from {
		before, section := all[name].(map[string]any)
		after, isSection := value.(map[string]any)
		switch {
		case section && isSection:
			mergeSettings(before, after)
		case value != nil:
			all[name] = value
		}
	}
}
