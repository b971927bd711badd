//! Determines the package that a Python program's command line starts: of `venv/bin/tool` the one that the script imports, of
//! `-m tool` that one, of `gunicorn shop.wsgi:app` the package `shop`, before gunicorn.
//!
//! An application that was installed by `pip`, as in container images, has no code in its working directory; reports take the
//! started package for its own code then.
//!
//! Invariant: everything is read when the process connects, and is bounded; what cannot be read or is not in the form in
//! which installers write it is left out.

use std::path::{Path, PathBuf};

use crate::program::process_files::ProcessFiles;

/// Longest script that is read: installers write a few lines.
pub(crate) const MOST_BYTES: u64 = 1 << 16;
/// Maximum number of packages.
const MOST: usize = 4;

/// Modules that libraries start workers with, and what begins the names of those.
const OF_WORKERS: [&str; 13] = [
    "multiprocessing.spawn",
    "multiprocessing.forkserver",
    "multiprocessing.resource_tracker",
    "multiprocessing.semaphore_tracker",
    "billiard.spawn",
    "billiard.forkserver",
    "billiard.semaphore_tracker",
    "joblib.externals.loky.",
    "loky.backend.",
    "ray._private.workers.",
    "pyspark.daemon",
    "pyspark.worker",
    "torch._inductor.compile_worker.",
];
/// What scripts import only to find what they start.
const FINDERS: [&str; 3] = ["pkg_resources", "importlib", "importlib_metadata"];

/// Whether a library starts processes of its own with this module: what they execute of the program, that has named.
pub(crate) fn is_of_workers(module: &str) -> bool {
    OF_WORKERS.iter().any(|of| module.strip_prefix(of).is_some_and(|rest| rest.is_empty() || of.ends_with('.')))
}

/// Whether a library wrote this code, which `-c` gives, to start a process of its own: no line of it is the user's.
pub(crate) fn is_of_worker(code: &[u8]) -> bool {
    let code = String::from_utf8_lossy(code);
    let imported = code.strip_prefix("from ").and_then(|rest| rest.split_once(" import "));
    imported.is_some_and(|(module, _)| is_of_workers(module))
}

/// The modules that a start names, the most particular first: those in the arguments, then the started one. What may be the
/// name of anything else (`redis:latest`) must be one that `is_there`.
pub(crate) fn named<'a>(
    arguments: impl Iterator<Item = &'a [u8]>,
    started: Option<String>,
    is_there: impl Fn(&str) -> bool,
) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_application = false;
    for argument in arguments {
        let text = str::from_utf8(argument).unwrap_or_default();
        let value = text.strip_prefix("--app=").or(is_application.then_some(text));
        is_application = matches!(text, "-A" | "--app");
        // Servers take the object of an application so.
        let object =
            text.split_once(':').filter(|(_, object)| object.split(['.', '(']).next().is_some_and(is_identifier));
        let module = value.map(|value| value.split(':').next().unwrap_or(value)).or(object.map(|(module, _)| module));
        let module = module.filter(|module| is_dotted(module) && (value.is_some() || is_there(module)));
        names.extend(module.map(str::to_owned));
    }
    names.extend(started.filter(|started| is_dotted(started)));
    names.truncate(MOST);
    names
}

/// The module that a script imports what it calls from, as `pip` and others write scripts: `from tool.cli import main`, and
/// below `sys.exit(main())`.
pub(crate) fn imported(script: &str) -> Option<String> {
    let mut imports = script.lines().filter_map(|line| {
        let (module, names) = line.trim().strip_prefix("from ")?.split_once(" import ")?;
        if FINDERS.contains(&module.split('.').next()?) {
            return None;
        }
        names.split(',').find_map(|name| {
            let name = name.split(" as ").last()?.trim();
            is_called(script, name).then_some(module.trim())
        })
    });
    imports.next_back().filter(|module| is_dotted(module)).map(str::to_owned)
}

/// Whether a line of the script is a call of what this name stands for, or of something in it.
fn is_called(script: &str, name: &str) -> bool {
    is_identifier(name)
        && script.lines().any(|line| {
            let call = ["raise SystemExit(", "sys.exit("].iter().find_map(|exit| line.trim().strip_prefix(exit));
            let rest = call.unwrap_or(line.trim()).strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['(', '.']) && rest.contains('('))
        })
}

/// The outermost package that the module belongs to: of a module in a namespace package, which several distributions share,
/// that below it. `sites`: where packages are installed.
pub(crate) fn outermost(files: &ProcessFiles, sites: &[PathBuf], module: &str) -> String {
    let regular = |site: &PathBuf| {
        let mut path = site.clone();
        let mut parts = module.split('.').enumerate();
        parts.find_map(|(depth, part)| {
            let file = path.join(part).with_extension("py");
            path.push(part);
            (files.is_there(&path.join("__init__.py")) || files.is_there(&file)).then_some(depth)
        })
    };
    let depth = sites.iter().find_map(regular).unwrap_or(0);
    module.split('.').take(depth + 1).collect::<Vec<_>>().join(".")
}

/// The module of a script that is run in the place where it is installed.
pub(crate) fn of_path(script: &Path) -> Option<String> {
    let text = script.to_str()?;
    let below = ["/site-packages/", "/dist-packages/"].iter().find_map(|folder| text.rsplit_once(folder))?.1;
    Some(below.strip_suffix(".py")?.replace('/', "."))
}

fn is_dotted(text: &str) -> bool {
    text.split('.').all(is_identifier)
}

fn is_identifier(text: &str) -> bool {
    !text.starts_with(|first: char| first.is_ascii_digit())
        && !text.is_empty()
        && text.chars().all(|letter| letter == '_' || letter.is_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::{imported, is_of_worker, is_of_workers, named, of_path, outermost};
    use crate::program::process_files::ProcessFiles;
    use std::fs;
    use std::path::Path;

    const PIP: &str = "#!/venv/bin/python\nimport re\nimport sys\nfrom tool.cli import main\nif __name__ == '__main__':\n    \
                       sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])\n    sys.exit(main())\n";

    #[test]
    fn a_script_starts_what_it_imports() {
        for (script, module) in [
            (PIP, Some("tool.cli")),
            ("import sys\nfrom tool import app as shop\nsys.exit(shop.run())\n", Some("tool")),
            ("from os.path import join\nfrom shop.start import run\nrun(join('a', 'b'))\n", Some("shop.start")),
            ("from shop import main\nraise SystemExit(main())\n", Some("shop")),
            ("from shop import main\nif __name__ == '__main__':\n    mainly()\n", None),
            ("import shop\n", None),
            ("from pkg_resources import load_entry_point\nsys.exit(load_entry_point('shop', 'x', 'y')())\n", None),
            ("from importlib.metadata import distribution\ndistribution('shop')\n", None),
            ("from . import main\nmain()\n", None),
            ("", None),
        ] {
            assert_eq!(imported(script).as_deref(), module, "{script}");
        }
    }

    #[test]
    fn workers_are_known_by_what_starts_them() {
        for (module, expected) in [
            ("joblib.externals.loky.backend.popen_loky_posix", true),
            ("ray._private.workers.default_worker", true),
            ("multiprocessing.spawn", true),
            ("multiprocessing.pool", false),
            ("joblib", false),
            ("pyspark.daemons", false),
        ] {
            let code = format!("from {module} import main; main(3)");
            assert_eq!((is_of_workers(module), is_of_worker(code.as_bytes())), (expected, expected), "{module}");
        }
        assert!(!is_of_worker(b"import multiprocessing.spawn") && !is_of_worker(b""));
    }

    #[test]
    fn arguments_name_an_application_before_its_server() {
        for (arguments, modules) in [
            (&["-b", "localhost:8000", "shop.wsgi:app"][..], &["shop.wsgi", "serve"][..]),
            (&["shop:make()", "--host", "redis:6379", "redis:latest"], &["shop", "serve"]),
            (&["-A", "shop.tasks", "worker"], &["shop.tasks", "serve"]),
            (&["--app=shop:app", "run"], &["shop", "serve"]),
            (&["--app", "shop", "run"], &["shop", "serve"]),
            (&["C:\\x", "-", "http://a", "a-b:c", ":", ""], &["serve"]),
        ] {
            let arguments = arguments.iter().map(|argument| argument.as_bytes());
            assert_eq!(named(arguments, Some("serve".into()), |module| module.starts_with("shop")), modules);
        }
        assert!(named(std::iter::empty(), None, |_| true).is_empty());
    }

    #[test]
    fn a_namespace_is_no_package_of_its_own() {
        let site = tempfile::tempdir().unwrap();
        let site = site.path().to_path_buf();
        for folder in ["google/cloud/store", "shop"] {
            fs::create_dir_all(site.join(folder)).unwrap();
            fs::write(site.join(folder).join("__init__.py"), "").unwrap();
        }
        fs::write(site.join("google/single.py"), "").unwrap();
        let sites = [Path::new("/nowhere").to_path_buf(), site];
        for (module, package) in [
            ("google.cloud.store.cli", "google.cloud.store"),
            ("google.single", "google.single"),
            ("shop.cli", "shop"),
            ("other.cli", "other"),
        ] {
            assert_eq!(outermost(&ProcessFiles::default(), &sites, module), package);
        }
        let path = |path: &str| of_path(Path::new(path));
        assert_eq!(path("/venv/lib/python3.12/site-packages/shop/run.py").as_deref(), Some("shop.run"));
        assert_eq!(path("/srv/shop/run.py"), None);
    }
}
