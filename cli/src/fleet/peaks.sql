-- How high the processes of each service peak: the median, the 95th percentile, and the most.
select service, count(*) as processes, count(distinct host) as hosts,
    percentile_cont(0.5) within group (order by peak_bytes) as median_peak_bytes,
    percentile_cont(0.95) within group (order by peak_bytes) as p95_peak_bytes,
    max(peak_bytes) as most_peak_bytes,
    percentile_cont(0.95) within group (order by peak_rss_bytes) as p95_peak_rss_bytes
from processes
group by service
order by p95_peak_bytes desc, service
