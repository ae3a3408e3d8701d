package app

import (
	"runtime"
	"runtime/debug"
	"strconv"
)

// release is the version of a release build, such as v1.2.3. The linker sets it:
// -ldflags "-X github.com/freshet/freshet/app.release=v1.2.3". It is empty in other builds.
var release string

// Version returns the version of this build.
func Version() string {
	info, _ := debug.ReadBuildInfo()
	return versionOf(release, info)
}

// Build describes this build. Commit and Date are empty and Modified is false if the program was
// built without the repository.
type Build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Date     string `json:"date"` // date of the commit, in RFC 3339
	Go       string `json:"go"`
	Modified bool   `json:"modified"` // the working tree had changes that are not in the commit
}

// ReadBuild returns the description of this build.
func ReadBuild() Build {
	info, _ := debug.ReadBuildInfo()
	return buildOf(release, info)
}

func buildOf(release string, info *debug.BuildInfo) Build {
	b := Build{Version: versionOf(release, info), Go: runtime.Version()}
	if info == nil {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Date = s.Value
		case "vcs.modified":
			b.Modified, _ = strconv.ParseBool(s.Value)
		}
	}
	return b
}

// versionOf returns release or, if it is empty, the module version in the build info. Builds with
// `go install …@v1.2.3` and builds in a checkout have a module version. Builds without the
// repository, as in a container image, have no module version: versionOf returns v0.0.0-dev for them.
func versionOf(release string, info *debug.BuildInfo) string {
	switch {
	case release != "":
		return release
	case info != nil && info.Main.Version != "" && info.Main.Version != "(devel)":
		return info.Main.Version
	}
	return "v0.0.0-dev"
}
