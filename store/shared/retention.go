package shared

// Statements for retention.
const (
	// InsertRetentionWalk, SelectRetentionWalk and UpdateRetentionWalk write and read the last key
	// that the deletion of a facet's expired rows has examined. Arguments: source, facet;
	// UpdateRetentionWalk also takes the key.
	InsertRetentionWalk = `INSERT INTO retention_walks (source, facet, after_key) VALUES ($1, $2, '') ON CONFLICT (source, facet) DO NOTHING`
	SelectRetentionWalk = `SELECT after_key FROM retention_walks WHERE source = $1 AND facet = $2`
	UpdateRetentionWalk = `UPDATE retention_walks SET after_key = $3 WHERE source = $1 AND facet = $2`

	// SelectExpired examines the next snapshots of a facet, in key order, after a given key. It
	// returns one row per expired snapshot, or one row with an empty key if none has expired.
	// Columns: number of examined snapshots, last examined key, key of the expired snapshot.
	// Arguments: source, facet, key, the times before which content and not-found results are expired, limit.
	SelectExpired = `WITH page AS (
	SELECT s.key, (` + expiredCondition + `) AS expired FROM snapshot_state s
	WHERE s.source = $1 AND s.facet = $2 AND s.key > $3 ORDER BY s.key LIMIT $6
), sum AS (SELECT count(*) AS n, coalesce(max(key), '') AS last FROM page)
SELECT sum.n, sum.last, coalesce(page.key, '') FROM sum LEFT JOIN page ON page.expired ORDER BY 3`

	// DeleteExpiredState deletes the state of one entity, unless the entity was fetched after
	// SelectExpired. Arguments: source, facet, key, and the two times of SelectExpired.
	DeleteExpiredState = `DELETE FROM snapshot_state AS s WHERE s.source = $1 AND s.facet = $2 AND s.key = $3 AND (` + expiredCondition + `)`

	// The retention period of content begins at the fetch that returned it. A later fetch that
	// returned no content (NotModified or KindNotFound) does not extend the period. The period of an
	// not-found result begins at its last check.
	expiredCondition = `CASE WHEN s.encoding <> '' THEN s.last_fetched_at < $4 ELSE s.last_checked_at < $5 END`

	// SelectOldStatuses examines the next statuses of a facet like SelectExpired examines snapshots,
	// and returns the old statuses of entities without a snapshot. Arguments: source, facet, key,
	// the time before which statuses are old, limit.
	SelectOldStatuses = `WITH page AS (
	SELECT u.key, (` + oldStatusCondition + `) AS expired FROM update_status u
	WHERE u.source = $1 AND u.facet = $2 AND u.key > $3 ORDER BY u.key LIMIT $5
), sum AS (SELECT count(*) AS n, coalesce(max(key), '') AS last FROM page)
SELECT sum.n, sum.last, coalesce(page.key, '') FROM sum LEFT JOIN page ON page.expired ORDER BY 3`

	// DeleteOldStatus deletes the status of one entity if it is old (oldStatusCondition).
	// Arguments: source, facet, key, the time before which statuses are old.
	DeleteOldStatus = `DELETE FROM update_status AS u WHERE u.source = $1 AND u.facet = $2 AND u.key = $3 AND (` + oldStatusCondition + `)`

	// A status is old if it was updated before the time $4 and the entity has no snapshot. A
	// RETRYING status is old only if its retry was also due before $4. Workers claim due retries
	// within seconds, so a retry that was due before $4 belongs to a facet that no worker handles
	// any more.
	oldStatusCondition = `u.updated_at < $4 AND (u.state <> 'RETRYING' OR u.next_retry_at < $4)
	AND NOT EXISTS (SELECT 1 FROM snapshot_state s WHERE s.source = u.source AND s.facet = u.facet AND s.key = u.key)`

	// StatusWalkSuffix distinguishes the two rows of a facet in retention_walks: in the row for the
	// facet's statuses, the facet's name ends in this suffix. No facet name contains it.
	StatusWalkSuffix = "/status"
)
