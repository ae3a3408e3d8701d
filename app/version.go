package app

import "runtime/debug"

// release is the version of a release build, such as v1.2.3. The linker sets it:
// -ldflags "-X github.com/freshet/freshet/app.release=v1.2.3". It is empty in other builds.
var release string

// Version returns the version of this build.
func Version() string {
	info, _ := debug.ReadBuildInfo()
	return versionOf(release, info)
}

// versionOf returns release or, if it is empty, the module version in the build info. Builds with
// `go install …@v1.2.3` and builds in a checkout have a module version. Builds without the
// repository, as in a container image, have none; for them it returns v0.0.0-dev.
func versionOf(release string, info *debug.BuildInfo) string {
	switch {
	case release != "":
		return release
	case info != nil && info.Main.Version != "" && info.Main.Version != "(devel)":
		return info.Main.Version
	}
	return "v0.0.0-dev"
}
