// Package dialecttest holds one contract against every dialect: what the front
// door relies on, whichever provider's shapes are spoken.
package dialecttest
