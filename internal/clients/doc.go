// Package clients proves with the official SDKs that a client of a model provider
// works through Tollgate unchanged. It holds tests alone.
//
// A suite is a script in python/ or node/ that calls one SDK in every way that
// its users do, and prints what it was given. The tests run each suite twice,
// against the fake provider and through a gateway on real services: what the SDK
// saw must be the same, and what the gateway charged must be what the provider
// says it generated. Two more suites are for what only the gateway says: its
// refusals. Every code block of docs/clients.md is run, too.
//
// deploy/clients installs the SDKs, and prints where they are:
//
//	TOLLGATE_TEST_PYTHON        an interpreter that has them
//	TOLLGATE_TEST_NODE          node
//	TOLLGATE_TEST_NODE_MODULES  the folder of its packages
//
// Without these the tests are skipped, or fail with TOLLGATE_TEST_REQUIRE=1.
package clients
