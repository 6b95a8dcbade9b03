package cli

import (
	"errors"
	"fmt"
	"os"

	"tollgate/internal/config"
	"tollgate/proxy/route"
)

type configCmd struct {
	Check configCheckCmd `cmd:"" help:"Validate file, environment and flags as a whole."`
	Print configPrintCmd `cmd:"" help:"Print the configuration in force, secrets redacted."`
}

type configCheckCmd struct{}

// Help implements kong.HelpProvider.
func (configCheckCmd) Help() string {
	return "Each mistake is named with its file and line, variable or flag; the upstreams' file is read, too.\nStatus 2 if there is one.\n\nExample:\n  tollgate --config tollgate.yaml config check"
}

type checkOutput struct {
	Valid    bool             `json:"valid"`
	Mistakes []config.Mistake `json:"mistakes"`
}

// Run checks the configuration.
func (configCheckCmd) Run(e *env) error {
	cfg, err := e.config()
	if err == nil && cfg.Proxy.Enabled() {
		err = e.checkUpstreams(cfg.Proxy.UpstreamsFile)
	}
	if !e.json {
		if err != nil {
			return err
		}
		_, err := fmt.Fprintln(e.out, "The configuration is valid.")
		return err
	}
	out := checkOutput{Valid: err == nil, Mistakes: []config.Mistake{}}
	if invalid, ok := asInvalid(err); ok {
		out.Mistakes = invalid.Mistakes
	}
	if printErr := e.value(out, nil); printErr != nil {
		return printErr
	}
	return err
}

// checkUpstreams reads the front door's table as a gateway does. Its mistakes are
// the configuration's.
func (e *env) checkUpstreams(file string) error {
	table, err := route.Open(file, os.Getenv)
	if err == nil {
		for _, warning := range table.Warnings {
			e.note("Warning: %s", warning)
		}
		return nil
	}
	var invalid *route.InvalidError
	if !errors.As(err, &invalid) {
		return withStatus(ExitUsage, err)
	}
	list := &config.InvalidError{}
	for _, m := range invalid.Mistakes {
		list.Mistakes = append(list.Mistakes, config.Mistake{Where: invalid.Where(m), Path: m.Path, Problem: m.Problem, Hint: m.Hint})
	}
	return withStatus(ExitUsage, list)
}

type configPrintCmd struct{}

// Help implements kong.HelpProvider.
func (configPrintCmd) Help() string {
	return "Example:\n  TOLLGATE_LOG_LEVEL=debug tollgate config print"
}

// Run prints the configuration.
func (configPrintCmd) Run(e *env) error {
	cfg, err := e.config()
	if err != nil {
		return err
	}
	return e.value(cfg, func() error { return cfg.Print(e.out) })
}
