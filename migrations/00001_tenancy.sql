-- +goose Up

-- Who may spend. Ids never change; a tenant is suspended, not deleted, while
-- the ledger knows it.
CREATE TABLE tenants (
    id         text        PRIMARY KEY CHECK (id ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    name       text        NOT NULL CHECK (name <> ''),
    suspended  boolean     NOT NULL DEFAULT false,
    critical   boolean     NOT NULL DEFAULT false,
    time_zone  text        NOT NULL CHECK (time_zone <> ''),
    currency   text        NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- API keys, with the SHA-256 of a 256-bit secret that is stored nowhere.
-- tenant_id is null for operators and meters of the whole platform.
CREATE TABLE api_keys (
    id          text        PRIMARY KEY CHECK (id ~ '^tgk_[0-9a-z]{16}$'),
    tenant_id   text        REFERENCES tenants (id),
    name        text        NOT NULL CHECK (name <> ''),
    role        text        NOT NULL CHECK (role IN ('tenant', 'operator', 'meter')),
    secret_hash bytea       NOT NULL UNIQUE CHECK (octet_length(secret_hash) = 32),
    limits      jsonb       NOT NULL DEFAULT '[]',
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz,
    revoked_at  timestamptz,
    CHECK (role <> 'tenant' OR tenant_id IS NOT NULL),
    CHECK (role <> 'operator' OR tenant_id IS NULL)
);
CREATE INDEX api_keys_tenant ON api_keys (tenant_id);

-- Every version of every quota document; the highest is in force.
CREATE TABLE tenant_quotas (
    tenant_id  text        NOT NULL REFERENCES tenants (id),
    version    bigint      NOT NULL CHECK (version >= 1),
    document   jsonb       NOT NULL,
    author     text        NOT NULL CHECK (author <> ''),
    reason     text        NOT NULL CHECK (reason <> ''),
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, version)
);

-- Every version of the platform's document; the highest is in force.
CREATE TABLE platform_versions (
    version    bigint      PRIMARY KEY CHECK (version >= 1),
    document   jsonb       NOT NULL,
    author     text        NOT NULL CHECK (author <> ''),
    reason     text        NOT NULL CHECK (reason <> ''),
    created_at timestamptz NOT NULL DEFAULT now()
);

-- The audit trail: what an administrator changed, who, when and why. Secrets
-- and their hashes are never in it.
CREATE TABLE admin_changes (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT now(),
    author  text        NOT NULL CHECK (author <> ''),
    reason  text        NOT NULL CHECK (reason <> ''),
    action  text        NOT NULL,
    subject text        NOT NULL, -- the published field: "tenant:<id>", "key:<id>", "platform"
    before  jsonb,
    after   jsonb
);
CREATE INDEX admin_changes_subject ON admin_changes (subject, id);

-- The version of everything that gateways are told. Its row lock puts changes
-- in the order in which they commit, so whoever has read version n has seen
-- every change up to n. A sequence would not do: numbers taken from it can
-- become visible in another order. Transactions lock this row first.
CREATE TABLE config_version (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version  bigint  NOT NULL
);
INSERT INTO config_version (version) VALUES (0);

-- Which published field changed last at which version. Deleted fields stay,
-- so that their deletion is published too.
CREATE TABLE config_fields (
    field   text    PRIMARY KEY,
    version bigint  NOT NULL,
    deleted boolean NOT NULL
);
CREATE INDEX config_fields_version ON config_fields (version);

-- Triggers, not the program, note changes: one made by hand is published too.
-- +goose StatementBegin
CREATE FUNCTION config_changed(changed_field text, is_deleted boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    next bigint;
BEGIN
    UPDATE config_version SET version = version + 1 RETURNING version INTO STRICT next;
    INSERT INTO config_fields (field, version, deleted) VALUES (changed_field, next, is_deleted)
        ON CONFLICT (field) DO UPDATE SET version = excluded.version, deleted = excluded.deleted;
    PERFORM pg_notify('tollgate_config', next::text);
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION config_row_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    CASE TG_TABLE_NAME
        WHEN 'tenants' THEN
            PERFORM config_changed('tenant:' || coalesce(NEW.id, OLD.id), TG_OP = 'DELETE');
        WHEN 'api_keys' THEN
            PERFORM config_changed('key:' || coalesce(NEW.id, OLD.id), TG_OP = 'DELETE');
        WHEN 'tenant_quotas' THEN
            PERFORM config_changed('tenant:' || coalesce(NEW.tenant_id, OLD.tenant_id), false);
        WHEN 'platform_versions' THEN
            PERFORM config_changed('platform', false);
    END CASE;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- A change by hand, too, takes the version's row before any other: else it
-- could wait for a transaction that waits for it.
-- +goose StatementBegin
CREATE FUNCTION config_change_begins() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM config_version FOR UPDATE;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER tenants_change_begins BEFORE INSERT OR UPDATE OR DELETE ON tenants
    FOR EACH STATEMENT EXECUTE FUNCTION config_change_begins();
CREATE TRIGGER api_keys_change_begins BEFORE INSERT OR UPDATE OR DELETE ON api_keys
    FOR EACH STATEMENT EXECUTE FUNCTION config_change_begins();
CREATE TRIGGER tenant_quotas_change_begins BEFORE INSERT OR UPDATE OR DELETE ON tenant_quotas
    FOR EACH STATEMENT EXECUTE FUNCTION config_change_begins();
CREATE TRIGGER platform_versions_change_begins BEFORE INSERT OR UPDATE OR DELETE ON platform_versions
    FOR EACH STATEMENT EXECUTE FUNCTION config_change_begins();

CREATE TRIGGER tenants_changed AFTER INSERT OR UPDATE OR DELETE ON tenants
    FOR EACH ROW EXECUTE FUNCTION config_row_changed();
CREATE TRIGGER api_keys_changed AFTER INSERT OR UPDATE OR DELETE ON api_keys
    FOR EACH ROW EXECUTE FUNCTION config_row_changed();
CREATE TRIGGER tenant_quotas_changed AFTER INSERT OR DELETE ON tenant_quotas
    FOR EACH ROW EXECUTE FUNCTION config_row_changed();
CREATE TRIGGER platform_versions_changed AFTER INSERT OR DELETE ON platform_versions
    FOR EACH ROW EXECUTE FUNCTION config_row_changed();

-- History is written once.
-- +goose StatementBegin
CREATE FUNCTION history_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% keeps history: rows are not changed', TG_TABLE_NAME;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER tenant_quotas_final BEFORE UPDATE ON tenant_quotas
    FOR EACH ROW EXECUTE FUNCTION history_is_final();
CREATE TRIGGER platform_versions_final BEFORE UPDATE ON platform_versions
    FOR EACH ROW EXECUTE FUNCTION history_is_final();
CREATE TRIGGER admin_changes_final BEFORE UPDATE OR DELETE ON admin_changes
    FOR EACH ROW EXECUTE FUNCTION history_is_final();
CREATE TRIGGER admin_changes_kept BEFORE TRUNCATE ON admin_changes
    FOR EACH STATEMENT EXECUTE FUNCTION history_is_final();

-- +goose Down
DROP TABLE config_fields, config_version, admin_changes, platform_versions, tenant_quotas, api_keys, tenants;
DROP FUNCTION config_change_begins, config_row_changed, config_changed, history_is_final;
