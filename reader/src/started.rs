//! Own code of programs whose code is all installed: the package that their command line starts.
//!
//! Installed code is a library's, and an application that `pip` has installed, as in container images, would have no own code
//! at all. The collector notes what the command line starts ([`Process::started_packages`]); the first of these that has
//! frames is own code, with everything in it, if no Python code of the capture is own code by its directory: where the
//! working directory has code, that is what a user of `pytest` or `gunicorn` means. With it goes Python code that lies in no
//! installation at all, wherever the package was told of it (`FLASK_APP`, a file of settings).
//!
//! Invariant: it depends only on the files of frames and on the programs, not on the order of either's frames.
//!
//! [`Process::started_packages`]: memtrack_format::meta::Process::started_packages

use rustc_hash::FxHashMap;

use crate::frames::{FrameId, Frames, NameId};
use crate::modules::{below_packages, below_standard_library};
use crate::program::Program;

/// Packages of which a frame is part, as bits: their numbers among those of all programs. Further ones are left out. The last
/// bit stands for what lies in no installation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PackageSet(u32);

impl PackageSet {
    const MOST: u32 = u32::BITS - 1;
    const ELSEWHERE: u32 = Self::MOST;

    /// What is in either.
    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The numbers of its packages, and that of what lies in no installation.
    pub(crate) fn numbers(self) -> impl Iterator<Item = u32> {
        (0..=Self::ELSEWHERE).filter(move |number| self.0 >> number & 1 == 1)
    }

    pub(crate) fn has(self, number: u32) -> bool {
        number <= Self::ELSEWHERE && self.0 >> number & 1 == 1
    }
}

/// A cache of the packages of files and native objects.
#[derive(Debug, Default)]
pub(crate) struct StartedPackages {
    known: FxHashMap<NameId, PackageSet>,
}

impl StartedPackages {
    /// The started packages of which the frame is part.
    pub(crate) fn of(&mut self, frames: &Frames, id: FrameId) -> PackageSet {
        let (object, file) = (frames.module_id(id), frames.frame(id).file);
        let file = object.unwrap_or(file);
        *self.known.entry(file).or_insert_with(|| {
            let path = frames.name(file);
            let of_program = frames.programs().iter().flat_map(|program| is_in_each(program, path));
            let bits = (0..PackageSet::MOST).zip(of_program);
            let is_elsewhere = object.is_none() && is_elsewhere(frames, path);
            let elsewhere = u32::from(is_elsewhere) << PackageSet::ELSEWHERE;
            PackageSet(bits.fold(elsewhere, |set, (number, is_in)| set | u32::from(is_in) << number))
        })
    }
}

/// Whether Python code lies in no installation, of a program that was started by an installed package or embeds Python.
fn is_elsewhere(frames: &Frames, path: &str) -> bool {
    let is_of_installation = below_packages(path).is_some() || below_standard_library(path).is_some();
    !is_of_installation && frames.programs().iter().any(|program| program.may_be_told_of(path))
}

/// The frames of the packages that are own code, if no other Python code is.
pub(crate) fn own_frames(frames: &Frames) -> Vec<FrameId> {
    let chosen = chosen(frames);
    if chosen == PackageSet::default() {
        return Vec::new();
    }
    let mut known = StartedPackages::default();
    let all = (0..).map(FrameId).zip(frames.frames()).map(|(id, _)| id);
    all.filter(|id| known.of(frames, *id).0 & chosen.0 != 0).collect()
}

/// The names of these packages, by their dots.
pub(crate) fn own_names(frames: &Frames) -> Vec<&str> {
    let chosen = chosen(frames);
    let names = frames.programs().iter().flat_map(|program| program.started_names());
    let mut own: Vec<_> =
        (0..PackageSet::MOST).zip(names).filter(|(number, _)| chosen.has(*number)).map(|(_, name)| name).collect();
    own.sort_unstable();
    own.dedup();
    own
}

/// Whether code that lies in no installation is own code.
pub(crate) fn is_own_elsewhere(frames: &Frames) -> bool {
    chosen(frames).has(PackageSet::ELSEWHERE)
}

/// Of each program the first started package that has frames, and what lies in no installation.
fn chosen(frames: &Frames) -> PackageSet {
    if !frames.programs().iter().any(|program| program.is_started_by_others()) {
        return PackageSet::default();
    }
    let all = (0..).map(FrameId).zip(frames.frames());
    let mut known = StartedPackages::default();
    let found = all.fold(PackageSet::default(), |set, (id, _)| set.with(known.of(frames, id)));
    let (mut chosen, mut number) = (found.0 & 1 << PackageSet::ELSEWHERE, 0);
    for program in frames.programs() {
        let numbers = number..number + program.started_names().len() as u32;
        number = numbers.end;
        let first = numbers.into_iter().find(|number| *number < PackageSet::MOST && found.has(*number));
        chosen |= first.map_or(0, |first| 1 << first);
    }
    PackageSet(chosen)
}

/// For each package that the program starts, whether the file or object at this path is part of it.
fn is_in_each(program: &Program, path: &str) -> impl Iterator<Item = bool> {
    let below = match below_packages(path) {
        _ if program.started_names().len() == 0 => None,
        Some(below) => Some(below.to_owned()),
        // Of an editable installation.
        None => program.module(path).map(|module| module.replace('.', "/")),
    };
    program.started_names().map(move |name| {
        let rest = below.as_deref().and_then(|below| below.strip_prefix(&*name.replace('.', "/")));
        // After a name's dot comes the end of a file's name.
        rest.is_some_and(|rest| {
            rest.is_empty() || rest.starts_with('/') || (rest.starts_with('.') && !rest.contains('/'))
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::frames::Frames;
    use crate::origin::{Origin, Whose, origins, own_packages, whose};
    use crate::program::Program;
    use memtrack_format::meta::Process;

    const JSON: &str = "/usr/lib/python3.12/json/decoder.py";
    const SCRIPT: &str = "/venv/bin/serve";
    const SERVER: &str = "/venv/lib/python3.12/site-packages/server/run.py";
    const SHOP: &str = "/venv/lib/python3.12/site-packages/shop/wsgi.py";

    fn program(started: &[&str], directory: &str) -> Program {
        Program::of(&Process {
            script: Some(SCRIPT.into()),
            own_directories: vec![directory.into()],
            import_roots: vec![directory.into(), b"/opt/src".to_vec()],
            packages: vec![b"/opt/src/shop".to_vec()],
            installed_directories: vec![b"/opt/deps".to_vec()],
            started_packages: started.iter().map(|name| name.as_bytes().to_vec()).collect(),
            ..Process::default()
        })
    }

    /// A stack of these files, outermost first, in a program that starts these packages.
    fn told(files: &[&str], started: &[&str]) -> (Vec<Origin>, Whose, String) {
        let mut frames = Frames::new();
        frames.add_program(program(started, "/srv").into());
        let ids: Vec<_> = files.iter().map(|file| frames.frame_named("f", file, 1).unwrap()).collect();
        for (id, file) in ids.iter().zip(files).filter(|(_, file)| file.ends_with(".so")) {
            frames.set_module(*id, file).unwrap();
        }
        let stack = frames.stack_of(&ids).unwrap();
        (origins(&frames), whose(&frames)[stack.0 as usize], own_packages(&frames).join(" "))
    }

    #[test]
    fn an_installed_application_has_the_code_of_its_package() {
        use Origin::{Library, Own, Standard};
        let text = |files: &[&str], started: &[&str]| told(files, started);
        let own = |names: &str| (Whose::Own, names.to_owned());
        for (files, started, frames, (whose, names)) in [
            (&[SCRIPT, SHOP, JSON][..], &["shop"][..], &[Library, Own, Standard][..], own("shop")),
            // What a server serves comes before the server, if it is installed.
            (&[SCRIPT, SERVER, SHOP], &["shop", "server"], &[Library, Library, Own], own("shop")),
            (&[SCRIPT, SERVER, JSON], &["shop", "server"], &[Library, Own, Standard], own("server")),
            // The working directory has code.
            (&[SCRIPT, SERVER, "/srv/app.py"], &["server"], &[Library, Library, Own], own("")),
            // Code in no installation that the server was told of, but not where nothing is started.
            (&[SCRIPT, SERVER, "/opt/x/a.py"], &["server"], &[Library, Own, Own], own("server")),
            (&[SCRIPT, SERVER, "/opt/x/a.py", "/srv/app.py"], &["server"], &[Library, Library, Library, Own], own("")),
            (&[SERVER, "/opt/x/a.py"], &[], &[Library, Library], (Whose::Libraries, String::new())),
            (&[SCRIPT, SERVER, "/opt/deps/six.py"], &["server"], &[Library, Own, Library], own("server")),
            (
                &[SERVER, "/etc/x.py", "/usr/lib/x.py", "<x>"],
                &["server"],
                &[Own, Library, Library, Library],
                own("server"),
            ),
            (&[SCRIPT, SERVER], &[], &[Library, Library], (Whose::Libraries, String::new())),
            (&[SCRIPT, SHOP], &["sho"], &[Library, Library], (Whose::Libraries, String::new())),
            (&["/opt/src/shop/x.py"], &["shop"], &[Own], own("shop")),
            (&["/v/site-packages/shop.py"], &["shop"], &[Own], own("shop")),
            (&["/v/site-packages/shop.libs/libx.so"], &["shop"], &[Library], (Whose::Libraries, String::new())),
            (&["/v/site-packages/shop/fast.cpython-312-x86_64-linux-gnu.so"], &["shop"], &[Own], own("shop")),
            (
                &["/v/site-packages/google/api/a.py", "/v/site-packages/google/store/b.py"],
                &["google.store"],
                &[Library, Own],
                own("google.store"),
            ),
        ] {
            assert_eq!(text(files, started), (frames.to_vec(), whose, names), "{files:?} {started:?}");
        }
    }

    #[test]
    fn each_of_several_programs_has_its_package() {
        let mut frames = Frames::new();
        frames.add_program(program(&["nothing", "server"], "/srv").into());
        frames.add_program(program(&["shop"], "/tmp").into());
        [SERVER, SHOP].iter().for_each(|file| _ = frames.frame_named("f", file, 1).unwrap());
        assert_eq!(origins(&frames), [Origin::Own; 2]);
        assert_eq!(own_packages(&frames), ["server", "shop"]);
    }
}
