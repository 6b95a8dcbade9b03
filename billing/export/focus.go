package export

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"strconv"

	"tollgate/billing"
)

// focusColumn is a column of FOCUS 1.2 (or, with x_, one of ours) and how a
// line fills it. An empty value is a null.
type focusColumn struct {
	name  string
	value func(focusRow) string
}

type focusRow struct {
	bill    billing.Bill
	line    billing.Line
	options Options
}

const (
	serviceCategory    = "AI and Machine Learning"
	serviceSubcategory = "Generative AI"
	serviceName        = "Model inference"
)

// focusColumns are in the specification's alphabetical order, ours last.
// Columns for what a bill here never has (commitments, capacity reservations,
// resources, availability zones, account types, another pricing currency) are
// conditional and left out, except ResourceId, SubAccountId and
// SubAccountName, which readers expect and which are null.
//
// BilledCost and EffectiveCost are rounded to the currency's minor unit and
// add up to the invoice. ContractedCost and ListCost are not rounded, because
// the specification wants them equal to unit price × PricingQuantity.
var focusColumns = []focusColumn{
	{"BilledCost", func(r focusRow) string { return r.line.Amount.String() }},
	{"BillingAccountId", func(r focusRow) string { return safe(r.bill.Account.TenantID) }},
	{"BillingAccountName", func(r focusRow) string { return safe(r.bill.Account.Name) }},
	{"BillingCurrency", func(r focusRow) string { return r.bill.Currency }},
	{"BillingPeriodEnd", func(r focusRow) string { return instant(r.bill.Period.To) }},
	{"BillingPeriodStart", func(r focusRow) string { return instant(r.bill.Period.From) }},
	{"ChargeCategory", func(r focusRow) string { return string(r.line.Category) }},
	{"ChargeClass", func(r focusRow) string { return when(r.line.Correction, "Correction") }},
	{"ChargeDescription", func(r focusRow) string { return safe(r.line.Description) }},
	{"ChargeFrequency", func(r focusRow) string {
		if r.usage() {
			return "Usage-Based"
		}
		return "One-Time"
	}},
	{"ChargePeriodEnd", func(r focusRow) string { return instant(r.line.To) }},
	{"ChargePeriodStart", func(r focusRow) string { return instant(r.line.From) }},
	{"ConsumedQuantity", focusRow.consumedQuantity},
	{"ConsumedUnit", func(r focusRow) string { return when(r.usage(), consumedUnit(r.line.Meter)) }},
	{"ContractedCost", func(r focusRow) string { return r.line.ExactAmount }},
	{"ContractedUnitPrice", func(r focusRow) string { return r.line.UnitPrice }},
	{"EffectiveCost", func(r focusRow) string { return r.line.Amount.String() }},
	{"InvoiceId", func(r focusRow) string { return r.bill.ID }},
	{"InvoiceIssuerName", func(r focusRow) string { return name(r.options.Issuer) }},
	{"ListCost", func(r focusRow) string { return r.line.ListAmount }},
	{"ListUnitPrice", func(r focusRow) string { return r.line.ListUnitPrice }},
	{"PricingCategory", func(r focusRow) string {
		switch {
		case !r.usage():
			return ""
		case !r.line.Rated:
			return "Other"
		}
		return "Standard"
	}},
	{"PricingQuantity", focusRow.pricingQuantity},
	{"PricingUnit", func(r focusRow) string { return when(r.usage(), pricingUnit(r.line.Meter, r.line.UnitSize)) }},
	{"ProviderName", func(r focusRow) string { return name(r.options.Provider) }},
	{"PublisherName", func(r focusRow) string { return name(r.options.Provider) }},
	{"RegionId", func(r focusRow) string { return safe(r.line.Region) }},
	{"RegionName", func(r focusRow) string { return safe(r.line.Region) }},
	{"ResourceId", func(focusRow) string { return "" }},
	{"ServiceCategory", func(focusRow) string { return serviceCategory }},
	{"ServiceName", func(focusRow) string { return serviceName }},
	{"ServiceSubcategory", func(focusRow) string { return serviceSubcategory }},
	{"SkuId", func(r focusRow) string { return when(r.usage(), safe(r.line.Model+"/"+string(r.line.Meter))) }},
	{"SkuMeter", func(r focusRow) string { return when(r.usage(), skuMeters[r.line.Meter]) }},
	{"SkuPriceDetails", focusRow.skuPriceDetails},
	{"SkuPriceId", focusRow.skuPriceID},
	{"SubAccountId", func(focusRow) string { return "" }},
	{"SubAccountName", func(focusRow) string { return "" }},
	{"Tags", func(focusRow) string { return "" }},
	{"x_CorrectedInvoiceId", func(r focusRow) string { return r.line.CorrectsBillID }},
	{"x_Model", func(r focusRow) string { return safe(r.line.Model) }},
	{"x_PriceId", func(r focusRow) string { return number(r.line.PriceID) }},
	{"x_Rated", func(r focusRow) string { return strconv.FormatBool(r.line.Rated) }},
}

func writeFOCUS(w io.Writer, bill billing.Bill, options Options) error {
	out := csv.NewWriter(w)
	row := make([]string, len(focusColumns))
	for i, column := range focusColumns {
		row[i] = column.name
	}
	if err := out.Write(row); err != nil {
		return err
	}
	for _, line := range bill.Lines {
		for i, column := range focusColumns {
			row[i] = column.value(focusRow{bill, line, options})
		}
		if err := out.Write(row); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func (r focusRow) usage() bool { return r.line.Category == billing.CategoryUsage }

// consumedQuantity counts time in seconds, which FOCUS readers know, and
// everything else in ones.
func (r focusRow) consumedQuantity() string {
	if !r.usage() {
		return ""
	}
	if r.line.Meter == billing.MeterAudioMillis || r.line.Meter == billing.MeterGPUMillis {
		return big.NewRat(r.line.Quantity, 1000).FloatString(3)
	}
	return strconv.FormatInt(r.line.Quantity, 10)
}

// pricingQuantity of usage without a price is counted in ones.
func (r focusRow) pricingQuantity() string {
	if r.usage() && !r.line.Rated {
		return r.consumedQuantity()
	}
	return when(r.usage(), r.line.PricingQuantity)
}

// skuPriceID names a price without its version or who negotiated it, because
// the specification wants it the same over time and over accounts. x_PriceId is
// the version.
func (r focusRow) skuPriceID() string {
	id := r.line.Model + "/" + string(r.line.Meter)
	if r.line.Region != "" {
		id += "/" + r.line.Region
	}
	if r.line.Tier > 0 {
		id += "/tier-" + strconv.Itoa(r.line.Tier)
	}
	return when(r.usage(), safe(id))
}

func (r focusRow) skuPriceDetails() string {
	if !r.usage() || !r.line.Rated {
		return ""
	}
	details := map[string]any{"x_PricingModel": string(r.line.Pricing)}
	if r.line.Tier > 0 {
		details["x_Tier"] = r.line.Tier
	}
	encoded, err := json.Marshal(details)
	if err != nil {
		return "" // strings and integers always encode
	}
	return string(encoded)
}

var skuMeters = map[billing.Meter]string{
	billing.MeterInput:       "Input Tokens",
	billing.MeterCachedInput: "Cached Input Tokens",
	billing.MeterOutput:      "Output Tokens",
	billing.MeterReasoning:   "Reasoning Tokens",
	billing.MeterImages:      "Images",
	billing.MeterAudioMillis: "Audio Time",
	billing.MeterGPUMillis:   "GPU Time",
	billing.MeterToolCalls:   "Tool Calls",
	billing.MeterRequests:    "Requests",
}

func consumedUnit(meter billing.Meter) string {
	switch meter {
	case billing.MeterImages:
		return "Images"
	case billing.MeterAudioMillis:
		return "Seconds"
	case billing.MeterGPUMillis:
		return "GPU-Seconds"
	case billing.MeterToolCalls:
		return "Calls"
	case billing.MeterRequests:
		return "Requests"
	}
	return "Tokens"
}

// pricingUnit follows the specification's unit format: plural units, with a
// whole number in front where the price is for more than one.
func pricingUnit(meter billing.Meter, size int64) string {
	unit := consumedUnit(meter)
	if meter == billing.MeterAudioMillis || meter == billing.MeterGPUMillis {
		prefix := ""
		if meter == billing.MeterGPUMillis {
			prefix = "GPU-"
		}
		switch {
		case size == 3_600_000:
			return prefix + "Hours"
		case size == 60_000:
			return prefix + "Minutes"
		case size == 1_000 || size == 0:
			return prefix + "Seconds"
		case size == 1:
			return prefix + "Milliseconds"
		}
		return fmt.Sprintf("%d %sMilliseconds", size, prefix)
	}
	if size <= 1 {
		return unit
	}
	return fmt.Sprintf("%d %s", size, unit)
}

func when(condition bool, value string) string {
	if condition {
		return value
	}
	return ""
}

func name(of string) string {
	if of == "" {
		return "Tollgate"
	}
	return safe(of)
}
