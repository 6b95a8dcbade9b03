package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"tollgate/internal/config"
)

// Every setting in docker-compose.yaml exists and has a good value.
func TestComposeSettingsAreValid(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(filepath.Join(root(t), "docker-compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	setting := regexp.MustCompile(`(?m)^ +(TOLLGATE_[A-Z_]+): ([^ \n]+)`)
	defaults := regexp.MustCompile(`\$\{[A-Z_]+:-([^}]*)\}`)
	var environment []string
	for _, match := range setting.FindAllSubmatch(content, -1) {
		environment = append(environment, string(match[1])+"="+defaults.ReplaceAllString(string(match[2]), "$1"))
	}
	if len(environment) < 5 {
		t.Fatalf("found %d settings; the test would prove nothing", len(environment))
	}
	loaded, err := config.Load(config.Source{Env: environment})
	if err != nil {
		t.Fatal(err)
	}
	if got := loaded.Redis.Addresses; len(got) != 1 || got[0] != "redis:6379" {
		t.Errorf("redis.addresses is %v", got)
	}
	if loaded.Relay.EnabledInGateway {
		t.Error("the gateway relays although the relay is a service")
	}
}
