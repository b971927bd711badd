-- What a process of one release holds at its peak more than one of another, by line of own code; then what has no own code.
-- What samples leave open is no difference.
with counted as (
    select p.service, count(distinct case when p.release = r.before_release then p.process end) as processes_before,
        count(distinct case when p.release = r.after_release then p.process end) as processes_after,
        max(case when p.release = r.before_release then p.sample_bytes end) as sample_bytes_before,
        max(case when p.release = r.after_release then p.sample_bytes end) as sample_bytes_after
    from processes p cross join releases r
    group by p.service
),
held as (
    select p.service, s.own_frame, s.whose,
        sum(case when p.release = r.before_release then s.peak_bytes else 0 end) as before_bytes,
        sum(case when p.release = r.after_release then s.peak_bytes else 0 end) as after_bytes,
        sum(case when p.release = r.before_release and p.sample_bytes is not null then s.peak_bytes else 0 end)
            as before_bytes_sampled,
        sum(case when p.release = r.after_release and p.sample_bytes is not null then s.peak_bytes else 0 end)
            as after_bytes_sampled,
        sum(case when p.release = r.before_release then coalesce(s.peak_bytes_variance, 0) else 0 end) as before_variance,
        sum(case when p.release = r.after_release then coalesce(s.peak_bytes_variance, 0) else 0 end) as after_variance,
        -- What would have a variance where it is sampled: mappings are exact.
        sum(case when s.peak_bytes_variance > 0 or p.sample_bytes is null
                and s.allocator not in ('mmap', 'mremap', 'pymalloc_arena', 'mimalloc_arena') then s.peak_bytes else 0 end)
            as blocks_bytes
    from sites s join processes p on p.process = s.process cross join releases r
    where p.release in (r.before_release, r.after_release)
    group by p.service, s.own_frame, s.whose
),
names as (
    select frame, min(function) as function, min(file) as file, min(line) as line from frames group by frame
),
compared as (
    select h.service, h.whose, n.function, n.file, n.line, max(c.processes_before) as processes_before,
        max(c.processes_after) as processes_after,
        sum(h.before_bytes) / max(c.processes_before) as before_bytes,
        sum(h.after_bytes) / max(c.processes_after) as after_bytes,
        -- What has no sample in a release may have been there all the same.
        sqrt(power(1.96, 2) * sum(h.before_variance)
            + case when sum(h.before_bytes_sampled) = 0 and sum(h.blocks_bytes) > 0
                then power(3.0 * coalesce(max(c.sample_bytes_before), 0), 2) else 0 end) / max(c.processes_before) as before_margin,
        sqrt(power(1.96, 2) * sum(h.after_variance)
            + case when sum(h.after_bytes_sampled) = 0 and sum(h.blocks_bytes) > 0
                then power(3.0 * coalesce(max(c.sample_bytes_after), 0), 2) else 0 end) / max(c.processes_after) as after_margin
    from held h join counted c on c.service = h.service left join names n on n.frame = h.own_frame
    where c.processes_before > 0 and c.processes_after > 0
    group by h.service, h.whose, n.function, n.file, n.line
),
differing as (
    select service, after_bytes - before_bytes as more_bytes, sqrt(power(before_margin, 2) + power(after_margin, 2)) as more_bytes_margin,
        before_bytes, before_margin, after_bytes, after_margin, processes_before, processes_after, whose, function, file, line
    from compared
)
select service, more_bytes, more_bytes_margin, before_bytes, before_margin as before_bytes_margin, after_bytes,
    after_margin as after_bytes_margin, processes_before, processes_after, whose, function, file, line
from differing
where more_bytes > more_bytes_margin
order by case when whose = 'own' then 0 else 1 end, more_bytes desc, function nulls last, file nulls last, line nulls last
limit 20
