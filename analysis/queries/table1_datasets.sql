-- Table 1: the datasets. Files of the paper's servers are described by workload and users; here by
-- what can be seen in the files themselves.
SELECT label AS dataset,
       count(f.file) AS files,
       count(r.file) - count(f.file) FILTER (r.size_bytes > 0)
           - count(r.file) FILTER (r.size_bytes = 0) AS unread_files,
       count(r.file) FILTER (r.size_bytes = 0) AS empty_files,
       coalesce(sum(f.length_bytes), 0)::BIGINT AS data_bytes,
       coalesce(sum(f.zero_bytes), 0)::BIGINT AS zero_bytes,
       coalesce(sum(f.hole_bytes), 0)::BIGINT AS hole_bytes,
       coalesce(median(f.length_bytes), 0)::BIGINT AS median_bytes,
       coalesce(max(f.length_bytes), 0)::BIGINT AS largest_bytes,
       count(DISTINCT f.type) AS types
FROM datasets LEFT JOIN raw_files AS r USING (dataset) LEFT JOIN files AS f USING (file)
GROUP BY dataset, label
ORDER BY dataset;
