-- What a process of one release holds at its peak more than one of another, by line of own code; then what has no own code.
-- What samples leave open is no difference.
with counted as (
    select p.service, count(distinct case when p.release = r.before_release then p.process end) as processes_before,
        count(distinct case when p.release = r.after_release then p.process end) as processes_after,
        max(case when p.release = r.before_release then p.sample_bytes end) as sample_bytes_before
    from processes p cross join releases r
    group by p.service
),
held as (
    select p.service, s.own_frame, s.whose,
        sum(case when p.release = r.before_release then s.peak_bytes else 0 end) as before_bytes,
        sum(case when p.release = r.after_release then s.peak_bytes else 0 end) as after_bytes,
        sum(case when p.release = r.before_release then coalesce(s.peak_bytes_variance, 0) else 0 end) as before_variance,
        sum(case when p.release = r.after_release then coalesce(s.peak_bytes_variance, 0) else 0 end) as after_variance
    from sites s join processes p on p.process = s.process cross join releases r
    where p.release in (r.before_release, r.after_release)
    group by p.service, s.own_frame, s.whose
),
names as (
    select frame, min(function) as function, min(file) as file, min(line) as line from frames group by frame
),
compared as (
    select h.service, h.whose, n.function, n.file, n.line,
        sum(h.before_bytes) / max(c.processes_before) as before_bytes,
        sum(h.after_bytes) / max(c.processes_after) as after_bytes,
        -- What has no sample before may have been there all the same.
        sqrt(power(1.96, 2) * (sum(h.before_variance) / power(max(c.processes_before), 2)
                + sum(h.after_variance) / power(max(c.processes_after), 2))
            + case when sum(h.before_bytes) = 0 and sum(h.after_variance) > 0
                then power(3.0 * coalesce(max(c.sample_bytes_before), 0) / max(c.processes_before), 2) else 0 end) as margin,
        max(c.processes_before) as processes_before, max(c.processes_after) as processes_after
    from held h join counted c on c.service = h.service left join names n on n.frame = h.own_frame
    where c.processes_before > 0 and c.processes_after > 0
    group by h.service, h.whose, n.function, n.file, n.line
)
select service, after_bytes - before_bytes as more_bytes, margin as more_bytes_margin, before_bytes, after_bytes,
    processes_before, processes_after, whose, function, file, line
from compared
where after_bytes - before_bytes > margin
order by case when whose = 'own' then 0 else 1 end, more_bytes desc, function
limit 20
