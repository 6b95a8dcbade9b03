-- +goose Up

-- What a price is for. Versions of one series never overlap in time.
CREATE TABLE price_series (
    series_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id text NOT NULL, -- '' for a list price
    model     text NOT NULL, -- '*' for models without their own price
    region    text NOT NULL, -- '' for any
    meter     text NOT NULL,
    currency  text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    UNIQUE (tenant_id, model, region, meter, currency)
);

-- Versions of prices. A version is never edited: a change of price is a new
-- version, which ends the one before. A version that is replaced from its very
-- beginning, before any bill was closed with it, is withdrawn and kept.
-- Hours are the grain of usage, so versions begin and end at UTC hours.
CREATE TABLE prices (
    price_id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    series_id     integer     NOT NULL REFERENCES price_series,
    valid_from    timestamptz NOT NULL CHECK (mod(extract(epoch FROM valid_from), 3600) = 0),
    valid_to      timestamptz CHECK (mod(extract(epoch FROM valid_to), 3600) = 0), -- exclusive; NULL: open
    pricing_model text        NOT NULL CHECK (pricing_model IN ('flat', 'graduated', 'volume', 'package')),
    unit_size     bigint      NOT NULL CHECK (unit_size BETWEEN 1 AND 1000000000),
    amount        numeric     NOT NULL CHECK (amount BETWEEN 0 AND 1000000000),
    tiers         jsonb       NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(tiers) = 'array'),
    source        text        NOT NULL,
    author        text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    withdrawn_at  timestamptz,
    CHECK (valid_to > valid_from),
    CHECK ((pricing_model IN ('graduated', 'volume')) = (jsonb_array_length(tiers) > 0)),
    -- A range of one integer stands for equality, which needs no extension.
    EXCLUDE USING gist (
        int4range(series_id, series_id, '[]') WITH &&,
        tstzrange(valid_from, valid_to) WITH &&
    ) WHERE (withdrawn_at IS NULL)
);
CREATE INDEX prices_series ON prices (series_id, valid_from);

-- +goose StatementBegin
CREATE FUNCTION prices_keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE'
        AND (OLD.price_id, OLD.series_id, OLD.valid_from, OLD.pricing_model, OLD.unit_size, OLD.amount, OLD.tiers, OLD.source, OLD.author, OLD.created_at)
        IS NOT DISTINCT FROM
            (NEW.price_id, NEW.series_id, NEW.valid_from, NEW.pricing_model, NEW.unit_size, NEW.amount, NEW.tiers, NEW.source, NEW.author, NEW.created_at)
        AND OLD.withdrawn_at IS NULL
        AND (NEW.valid_to IS NOT DISTINCT FROM OLD.valid_to OR NEW.valid_to < coalesce(OLD.valid_to, 'infinity'))
    THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'prices are never changed: add a version' USING ERRCODE = 'restrict_violation';
END $$;
-- +goose StatementEnd
CREATE TRIGGER prices_keep BEFORE UPDATE OR DELETE ON prices FOR EACH ROW EXECUTE FUNCTION prices_keep();

-- Price files that changed something.
CREATE TABLE price_imports (
    import_id  bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sha256     text        NOT NULL,
    source     text        NOT NULL,
    currency   text        NOT NULL,
    valid_from timestamptz NOT NULL,
    author     text        NOT NULL,
    entries    integer     NOT NULL,
    added      integer     NOT NULL,
    changed    integer     NOT NULL,
    left_out   integer     NOT NULL,
    imported_at timestamptz NOT NULL DEFAULT now()
);

-- One row a billed tenant. It is the lock under which bills are closed and
-- credits are given, and it carries the balance: credit not yet used.
CREATE TABLE billing_accounts (
    account_no   integer        GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id    text           NOT NULL UNIQUE,
    currency     text           NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    balance      numeric        NOT NULL DEFAULT 0 CHECK (balance >= 0),
    closed_bills integer        NOT NULL DEFAULT 0
);

-- Closed bills. document is the bill as it was closed, byte for byte; the
-- columns and bill_lines repeat what is searched and added up.
CREATE TABLE bills (
    bill_id       text        PRIMARY KEY,
    account_no    integer     NOT NULL REFERENCES billing_accounts,
    tenant_id     text        NOT NULL,
    period_from   timestamptz NOT NULL,
    period_to     timestamptz NOT NULL CHECK (period_to > period_from),
    label         text        NOT NULL,
    currency      text        NOT NULL,
    line_count    integer     NOT NULL,
    unrated_lines integer     NOT NULL,
    total         numeric     NOT NULL,
    closed_at     timestamptz NOT NULL,
    closed_by     text        NOT NULL,
    document      json        NOT NULL,
    UNIQUE (tenant_id, period_from, period_to),
    -- A tenant's instant is on one closed bill.
    EXCLUDE USING gist (
        int4range(account_no, account_no, '[]') WITH &&,
        tstzrange(period_from, period_to) WITH &&
    )
);
CREATE INDEX bills_period_to ON bills (period_to);

-- What each bill charged, by model, meter, price and span of hours.
CREATE TABLE bill_lines (
    bill_id          text        NOT NULL REFERENCES bills DEFERRABLE INITIALLY DEFERRED,
    n                integer     NOT NULL,
    category         text        NOT NULL CHECK (category IN ('Usage', 'Credit')),
    corrects_bill_id text        REFERENCES bills, -- NULL: not a correction
    charge_from      timestamptz NOT NULL,
    charge_to        timestamptz NOT NULL,
    first_use        timestamptz,
    last_use         timestamptz,
    model            text        NOT NULL,
    region           text        NOT NULL,
    meter            text        NOT NULL,
    price_id         bigint      REFERENCES prices, -- NULL: not rated, or a credit
    tier             integer     NOT NULL,
    quantity         bigint      NOT NULL,
    amount           numeric     NOT NULL,
    rated            boolean     NOT NULL,
    line             json        NOT NULL,
    PRIMARY KEY (bill_id, n)
);
CREATE INDEX bill_lines_corrects ON bill_lines (corrects_bill_id) WHERE corrects_bill_id IS NOT NULL;

-- Closed is closed. Lines come before their bill in one transaction; when the
-- bill arrives they must add up to it, and after that no line may follow.
-- +goose StatementBegin
CREATE FUNCTION bills_keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is immutable: a closed bill is corrected by the next one', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION bill_lines_before_bill() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM bills WHERE bill_id = NEW.bill_id) THEN
        RAISE EXCEPTION 'bill % is closed', NEW.bill_id USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION bills_add_up() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    lines integer;
    total numeric;
BEGIN
    SELECT count(*), coalesce(sum(amount), 0) INTO lines, total FROM bill_lines WHERE bill_id = NEW.bill_id;
    IF lines <> NEW.line_count OR total <> NEW.total THEN
        RAISE EXCEPTION 'bill %: % lines of % do not add up to % lines of %', NEW.bill_id, lines, total, NEW.line_count, NEW.total
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER bills_keep BEFORE UPDATE OR DELETE ON bills FOR EACH ROW EXECUTE FUNCTION bills_keep();
CREATE TRIGGER bills_keep_all BEFORE TRUNCATE ON bills FOR EACH STATEMENT EXECUTE FUNCTION bills_keep();
CREATE TRIGGER bills_add_up BEFORE INSERT ON bills FOR EACH ROW EXECUTE FUNCTION bills_add_up();
CREATE TRIGGER bill_lines_keep BEFORE UPDATE OR DELETE ON bill_lines FOR EACH ROW EXECUTE FUNCTION bills_keep();
CREATE TRIGGER bill_lines_keep_all BEFORE TRUNCATE ON bill_lines FOR EACH STATEMENT EXECUTE FUNCTION bills_keep();
CREATE TRIGGER bill_lines_before_bill BEFORE INSERT ON bill_lines FOR EACH ROW EXECUTE FUNCTION bill_lines_before_bill();

-- Credits and refunds. The key makes a repeat harmless.
CREATE TABLE credits (
    credit_id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account_no      integer     NOT NULL REFERENCES billing_accounts,
    tenant_id       text        NOT NULL,
    idempotency_key text        NOT NULL,
    kind            text        NOT NULL CHECK (kind IN ('credit', 'refund')),
    amount          numeric     NOT NULL CHECK (amount > 0),
    currency        text        NOT NULL,
    reason          text        NOT NULL,
    author          text        NOT NULL,
    status          text        NOT NULL CHECK (status IN ('pending', 'posted')),
    created_at      timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, idempotency_key)
);

-- Every movement of a balance; billing_accounts.balance is their sum.
CREATE TABLE balance_entries (
    entry_id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account_no integer     NOT NULL REFERENCES billing_accounts,
    kind       text        NOT NULL CHECK (kind IN ('credit', 'bill')),
    reference  text        NOT NULL, -- credit_id or bill_id
    amount     numeric     NOT NULL CHECK (amount <> 0),
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (kind, reference)
);
CREATE INDEX balance_entries_account ON balance_entries (account_no);
CREATE TRIGGER balance_entries_keep BEFORE UPDATE OR DELETE ON balance_entries FOR EACH ROW EXECUTE FUNCTION bills_keep();
CREATE TRIGGER balance_entries_keep_all BEFORE TRUNCATE ON balance_entries FOR EACH STATEMENT EXECUTE FUNCTION bills_keep();

-- A period that begins within an hour needs that hour's events by their time.
-- Events arrive nearly in time order, which is what a BRIN index is small and
-- nearly free for.
CREATE INDEX journal_event_time ON journal USING brin (event_time) WITH (pages_per_range = 32, autosummarize = on);

-- +goose Down
DROP INDEX journal_event_time;
DROP TABLE balance_entries, credits, bill_lines, bills, billing_accounts, price_imports, prices, price_series;
DROP FUNCTION bills_add_up, bill_lines_before_bill, bills_keep, prices_keep;
