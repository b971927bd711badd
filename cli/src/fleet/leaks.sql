-- What a process of each release leaves live, and how fast its live memory grows, by service.
with ends as (
    select w.process, min(w.window_number) as first_window, max(w.window_number) as last_window,
        max(w.end_ns) - min(w.end_ns) as lasted_ns
    from windows w join processes p on p.process = w.process
    where w.end_ns <= coalesce(p.finalizing_ns, p.duration_ns)
    group by w.process
),
grown as (
    select w.process,
        sum(case when w.window_number = e.last_window then w.live_bytes else 0 end)
            - sum(case when w.window_number = e.first_window then w.live_bytes else 0 end) as bytes,
        max(e.lasted_ns) as lasted_ns
    from windows w join ends e on e.process = w.process
    where e.last_window > e.first_window
    group by w.process
)
select p.service, p.release, count(*) as processes, avg(p.leaked_bytes) as leaked_bytes, max(p.leaked_bytes) as most_leaked_bytes,
    sum(g.bytes) / (sum(g.lasted_ns) / 3.6e12) as growth_bytes_per_hour
from processes p left join grown g on g.process = p.process
group by p.service, p.release
order by leaked_bytes desc, p.service, p.release
