// Package archtest holds the tests of the project's shape: which package may
// import which, which module may be used where, that deciding code has no
// clock, dice or floating point, that each dependency has its reason written
// down, and that the repository names nothing that a build must not depend on.
//
// The tables are in arrows_test.go. A new package or arrow is an entry there
// with its reason; a reason that is hard to write is the sign to think again.
package archtest
