package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set by the linker in a release build.
var version = "dev"

type versionCmd struct{}

type versionOutput struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
}

// Help implements kong.HelpProvider.
func (versionCmd) Help() string { return "Example:\n  tollgate version --json" }

// Run prints the version.
func (versionCmd) Run(e *env) error {
	v := versionOutput{Version: version, Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Revision = s.Value
			}
		}
	}
	return e.value(v, func() error {
		_, err := fmt.Fprintf(e.out, "tollgate %s %s %s\n", v.Version, v.Revision, v.Go)
		return err
	})
}
