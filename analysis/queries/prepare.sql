-- What all queries of the study start from. The views raw_files, raw_whole and raw_chunks over the
-- Parquet logs, the table datasets (dataset, label) and the macros of names.sql exist already; so do
-- the variables
--   sample      the fraction of distinct chunks that the log has (1 = all)
--   measured    the fraction of distinct chunks whose compressed size it has: some of those; the
--               others have NULL
--   saving_min  a chunk whose compression saves less than this fraction is stored raw

-- Files that were read. Bytes without holes, which occupy nothing on the disk in the first place;
-- zeros are part of them. first_*: no earlier file has the same content.
CREATE TABLE files AS
SELECT f.dataset, f.file, f.path, directory(shown(f.path)) AS directory,
       type(filename(shown(f.path))) AS type, f.changed_s,
       w.length_bytes, w.zero_bytes, w.hole_bytes, w.fp_high, w.fp_low,
       row_number() OVER (
           PARTITION BY f.dataset, w.fp_high, w.fp_low, w.length_bytes + w.hole_bytes
           ORDER BY f.file) = 1 AS first_in_dataset,
       row_number() OVER (
           PARTITION BY w.fp_high, w.fp_low, w.length_bytes + w.hole_bytes
           ORDER BY f.file) = 1 AS first_overall
FROM raw_files AS f JOIN raw_whole AS w USING (file);

-- What a chunk takes in the store, without the record's header.
CREATE MACRO stored(length, compressed) AS
    CASE WHEN compressed IS NULL THEN NULL
         WHEN compressed <= length * (1 - getvariable('saving_min')) THEN compressed
         ELSE length END;

-- Sums over distinct chunks from which a total and its uncertainty follow. x is what is asked for
-- (bytes to store, say), a an auxiliary whose exact total is known: the bytes of the chunk's
-- occurrences in files that are not copies of whole other files.
CREATE MACRO moments(x, a) AS {
    'n': count(*), 'x': sum(x), 'a': sum(a),
    'xx': sum(x::DOUBLE * x), 'xa': sum(x::DOUBLE * a), 'aa': sum(a::DOUBLE * a)};

-- The total of x over all chunks, from the sample: the difference estimator with the slope that
-- leaves the least variance. Without sampling it is the plain sum.
CREATE MACRO slope(m) AS CASE WHEN m.aa > 0 THEN m.xa / m.aa ELSE 0 END;
CREATE MACRO estimate(m, a_total) AS
    CASE WHEN getvariable('sample') >= 1 THEN coalesce(m.x, 0)::DOUBLE
         ELSE greatest(0, coalesce(m.x, 0) / getvariable('sample')
              + slope(m) * (a_total - coalesce(m.a, 0) / getvariable('sample'))) END;

-- Its standard deviation: each distinct chunk is in the sample independently of the others.
CREATE MACRO deviation(m) AS
    CASE WHEN getvariable('sample') >= 1 THEN 0::DOUBLE
         ELSE sqrt((1 - getvariable('sample')) * greatest(0, coalesce(
              m.xx - 2 * slope(m) * m.xa + slope(m) * slope(m) * m.aa, 0)))
              / getvariable('sample') END;

-- The same for what depends on the compressed size. x is known for the chunks that were measured
-- alone; their length and a are in the sums too.
CREATE MACRO moments_measured(x, length, a) AS {
    'n': count(x), 'x': sum(x), 'l': sum(length) FILTER (x IS NOT NULL),
    'xx': sum(x::DOUBLE * x), 'xl': sum(x::DOUBLE * length),
    'll': sum(length::DOUBLE * length) FILTER (x IS NOT NULL),
    'xa': sum(x::DOUBLE * a), 'la': sum(length::DOUBLE * a) FILTER (x IS NOT NULL)};

-- The total of x: the total length, times what x is for each byte of a measured chunk. u are the
-- moments of the length over all chunks of the log.
CREATE MACRO ratio(m) AS CASE WHEN m.l > 0 THEN m.x / m.l ELSE 1 END;
CREATE MACRO estimate_measured(m, u, a_total) AS
    CASE WHEN getvariable('measured') >= 1 THEN coalesce(m.x, 0)::DOUBLE
         ELSE ratio(m) * estimate(u, a_total) END;

-- Its standard deviation: that of the length, that of the ratio, and twice their covariance.
CREATE MACRO deviation_measured(m, u) AS
    CASE WHEN getvariable('measured') >= 1 THEN 0::DOUBLE
         ELSE sqrt(greatest(0, coalesce(
              (ratio(m) * deviation(u)) ** 2
              + (1 - getvariable('measured')) / getvariable('measured') ** 2
                * greatest(0, m.xx - 2 * ratio(m) * m.xl + ratio(m) ** 2 * m.ll)
              + 2 * ratio(m) * (1 - getvariable('sample'))
                / (getvariable('sample') * getvariable('measured'))
                * (m.xl - ratio(m) * m.ll - slope(u) * (m.xa - ratio(m) * m.la)), 0))) END;

-- A plain count or sum over chunks, scaled up.
CREATE MACRO scaled(x) AS x / getvariable('sample');

CREATE TABLE savings (
    chunking VARCHAR, dataset VARCHAR, data_bytes DOUBLE, chunks DOUBLE, distinct_chunks DOUBLE,
    unique_bytes DOUBLE, unique_deviation DOUBLE, stored_bytes DOUBLE, stored_deviation DOUBLE,
    sampled_chunks BIGINT);

CREATE TABLE file_partitions (file UBIGINT, by_type VARCHAR, by_path VARCHAR);
CREATE TABLE dataset_groups (name VARCHAR, dataset USMALLINT);
