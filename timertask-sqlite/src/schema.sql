CREATE TABLE timertask_store (
    one     INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    id      BLOB    NOT NULL CHECK (length(id) = 16),
    layout  INTEGER NOT NULL
) STRICT;

CREATE TABLE timertask_plan (
    namespace       TEXT    NOT NULL,
    plan            TEXT    NOT NULL,
    fingerprint     BLOB    NOT NULL,
    effective_from  INTEGER NOT NULL,
    closed          INTEGER NOT NULL,
    cursor          INTEGER NOT NULL,
    low_water       INTEGER NOT NULL,
    fence           INTEGER NOT NULL,
    last_success    INTEGER,
    window_from     INTEGER,
    pause_since     INTEGER,
    pause_by        TEXT,
    pause_why       TEXT,
    pause_until     INTEGER,
    PRIMARY KEY (namespace, plan)
) STRICT, WITHOUT ROWID;

CREATE TABLE timertask_slot (
    namespace   TEXT    NOT NULL,
    plan        TEXT    NOT NULL,
    at          INTEGER NOT NULL,
    request     TEXT    NOT NULL,
    state       INTEGER NOT NULL,
    how         INTEGER,
    kind        INTEGER NOT NULL,
    nonce       BLOB    NOT NULL,
    released    BLOB    NOT NULL,
    fence       INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    lease_end   INTEGER NOT NULL,
    ttl         INTEGER NOT NULL,
    cancel_by   TEXT,
    cancel_why  TEXT,
    instance    TEXT,
    version     TEXT,
    claimed_at  INTEGER,
    started_at  INTEGER,
    ended_at    INTEGER,
    tries       INTEGER NOT NULL,
    detail      TEXT,
    asked_by    TEXT,
    asked_why   TEXT,
    PRIMARY KEY (namespace, plan, at, request)
) STRICT, WITHOUT ROWID;

-- The running and the open: asked for by each claim (its gate) and by each sweep.
CREATE INDEX timertask_slot_unfinished ON timertask_slot (namespace, plan, at, request) WHERE state < 2;

-- A `run_now` is found by its request id, whatever its instant.
CREATE INDEX timertask_slot_request ON timertask_slot (namespace, plan, request, at) WHERE request <> '';

CREATE TABLE timertask_range (
    namespace  TEXT    NOT NULL,
    plan       TEXT    NOT NULL,
    first      INTEGER NOT NULL,
    last       INTEGER NOT NULL,
    count      INTEGER,
    reason     INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    PRIMARY KEY (namespace, plan, last, first)
) STRICT, WITHOUT ROWID;

CREATE TABLE timertask_lock (
    namespace  TEXT    NOT NULL,
    plan       TEXT    NOT NULL,
    at         INTEGER NOT NULL,
    request    TEXT    NOT NULL,
    nonce      BLOB    NOT NULL,
    fence      INTEGER NOT NULL,
    lease_end  INTEGER NOT NULL,
    PRIMARY KEY (namespace, plan, at, request)
) STRICT, WITHOUT ROWID;

CREATE INDEX timertask_lock_lapsed ON timertask_lock (lease_end);

CREATE TABLE timertask_lock_fence (
    namespace  TEXT    NOT NULL,
    plan       TEXT    NOT NULL,
    fence      INTEGER NOT NULL,
    PRIMARY KEY (namespace, plan)
) STRICT, WITHOUT ROWID;

CREATE TABLE timertask_board (
    namespace  TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    body       TEXT    NOT NULL,
    until      INTEGER NOT NULL,
    PRIMARY KEY (namespace, kind, key)
) STRICT, WITHOUT ROWID;
