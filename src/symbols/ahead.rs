//! Names that are looked up before they are asked for: several modules side by side, each on a thread of its own.
//!
//! What is found is the same as without it, and is told in the order of the questions. Where there is no thread to be
//! had, the asker looks for himself.

use super::beside::processors;
use super::{ModuleSource, Search, packages, resolve_module};
use crate::base::addr::{ModuleId, ObjAddr};
use crate::profile::symbolize::Resolution;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// At most so many modules are open at a time: their tables may be large.
const MAX_OPEN_MODULES: usize = 4;

/// Names with the sentences about what went wrong.
pub(super) type Found = (Resolution, Vec<String>);

/// The package of each file that was asked for.
type Packages = Vec<Option<String>>;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Prefetch {
    modules: FxHashMap<ModuleId, (Vec<ObjAddr>, Receiver<Found>)>,
    packages: Option<(Vec<PathBuf>, Receiver<Packages>)>,
}

/// A module to look at.
struct Job {
    source: Arc<ModuleSource>,
    addrs: Vec<ObjAddr>,
    answer: Sender<Found>,
}

/// Looks at a module, and tells what went wrong.
pub(super) fn look(source: &ModuleSource, search: &Search, addrs: &[ObjAddr]) -> Found {
    let mut warnings = Vec::new();
    let resolution = resolve_module(source, search, addrs, &mut |warning| warnings.push(warning));
    (resolution, warnings)
}

impl Prefetch {
    /// Begins to look at these modules, but for those that it looks at already. Fewer than `least` are not worth a
    /// thread.
    pub(super) fn begin(
        &mut self,
        search: &Search,
        mut questions: Vec<(ModuleId, Arc<ModuleSource>, Vec<ObjAddr>)>,
        least: usize,
    ) {
        let is_begun = |module: &ModuleId, addrs: &Vec<ObjAddr>| {
            self.modules.get(module).is_some_and(|(expected, _)| expected == addrs)
        };
        questions.retain(|(module, _, addrs)| !is_begun(module, addrs));
        let workers = processors().min(questions.len()).min(MAX_OPEN_MODULES);
        if workers < least {
            return;
        }
        let mut jobs = VecDeque::new();
        for (module, source, addrs) in questions {
            let (answer, receiver) = channel();
            self.modules.insert(module, (addrs.clone(), receiver));
            jobs.push_back(Job { source, addrs, answer });
        }
        let jobs = Arc::new(Mutex::new(jobs));
        let search = Arc::new(search.clone());
        for _ in 0..workers {
            let (jobs, search) = (Arc::clone(&jobs), Arc::clone(&search));
            // If there is none to be had, the jobs are dropped, and whoever waits for them hears it.
            let _ = thread::Builder::new().name("names ahead".to_owned()).spawn(move || {
                let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                while let Some(Job { source, addrs, answer }) = next() {
                    // Nobody may wait for it any more.
                    let _ = answer.send(look(&source, &search, &addrs));
                }
            });
        }
    }

    /// What was found about exactly these addresses, if they were looked for.
    pub(super) fn take(&mut self, module: ModuleId, addrs: &[ObjAddr]) -> Option<Found> {
        let (expected, receiver) = self.modules.remove(&module)?;
        if expected != addrs {
            tracing::debug!("module {} was read ahead for other addresses than those requested", module.0);
            return None;
        }
        receiver.recv().ok()
    }

    /// Begins to look for the packages of these files.
    pub(super) fn begin_packages(&mut self, search: &Search, files: &[PathBuf]) {
        if files.is_empty() {
            return;
        }
        let (answer, receiver) = channel();
        self.packages = Some((files.to_vec(), receiver));
        let (root, files) = (search.root.clone(), files.to_vec());
        let _ = thread::Builder::new().name("packages".to_owned()).spawn(move || {
            let _ = answer.send(packages::debug_packages(&root, &files));
        });
    }

    /// The packages of these files, if all were looked for.
    pub(super) fn take_packages(&mut self, files: &[PathBuf]) -> Option<Packages> {
        let (expected, receiver) = self.packages.take()?;
        let places: Option<Vec<usize>> =
            files.iter().map(|file| expected.iter().position(|known| known == file)).collect();
        let (places, found) = (places?, receiver.recv().ok()?);
        Some(places.into_iter().map(|place| found.get(place).cloned().flatten()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::elf::testing::TempDir;

    const SOURCE: &str =
        "__attribute__((noinline)) int NAME(int x) { return x * 3; }\nint main(void) { return NAME(2); }\n";

    /// Modules that are looked at side by side give what each gives alone; other questions than the expected ones find
    /// nothing.
    #[test]
    fn what_is_found_ahead_is_what_is_found() {
        let dir = TempDir::new("ahead");
        let search = Search::default();
        let mut questions = Vec::new();
        for number in 0..6_u64 {
            let program =
                dir.compile("cc", &format!("p{number}"), &SOURCE.replace("NAME", &format!("f{number}")), &["-g"]);
            let bytes = std::fs::read(&program).unwrap();
            let symbol = crate::image::elf::Elf::parse(&bytes).unwrap().find_symbol(&format!("f{number}")).unwrap();
            let source = ModuleSource { path: program, ..ModuleSource::default() };
            questions.push((ModuleId(u32::try_from(number).unwrap()), Arc::new(source), vec![symbol.addr]));
        }
        let alone: Vec<Found> = questions.iter().map(|(_, source, addrs)| look(source, &search, addrs)).collect();
        let mut ahead = Prefetch::default();
        ahead.begin(&search, questions.clone(), 2);
        for (number, ((module, _, addrs), alone)) in questions.iter().zip(alone).enumerate() {
            if let Some(found) = ahead.take(*module, addrs) {
                assert_eq!(found, alone);
            }
            assert!(ahead.take(*module, addrs).is_none(), "it is given once");
            let name = alone.0.frames[0][0].function.as_ref().map(|function| function.name.to_string());
            assert_eq!(name, Some(format!("f{number}")));
        }
        ahead.begin(&search, questions.clone(), 2);
        assert!(ahead.take(questions[0].0, &[ObjAddr(1)]).is_none());
    }

    /// A look that is under way goes on when it is asked for again, and one module is looked at where that is wanted.
    #[test]
    fn what_is_looked_at_is_not_looked_at_again() {
        let dir = TempDir::new("ahead-again");
        let program = dir.compile("cc", "program", &SOURCE.replace("NAME", "f"), &["-g"]);
        let source = Arc::new(ModuleSource { path: program, ..ModuleSource::default() });
        let question = |addr: u64| vec![(ModuleId(1), Arc::clone(&source), vec![ObjAddr(addr)])];
        let mut ahead = Prefetch::default();
        ahead.begin(&Search::default(), question(1), 2);
        assert!(ahead.modules.is_empty());
        ahead.begin(&Search::default(), question(1), 1);
        let (_, first) = ahead.modules.remove(&ModuleId(1)).unwrap();
        // the same look, with an answer that no second look would give
        let (answer, receiver) = channel();
        let marked = (first.recv().unwrap().0, vec!["of the first look".to_owned()]);
        answer.send(marked.clone()).unwrap();
        ahead.modules.insert(ModuleId(1), (vec![ObjAddr(1)], receiver));
        ahead.begin(&Search::default(), question(1), 1);
        assert_eq!(ahead.take(ModuleId(1), &[ObjAddr(1)]), Some(marked.clone()));
        // other addresses are another look
        ahead.modules.insert(ModuleId(1), (vec![ObjAddr(1)], channel().1));
        ahead.begin(&Search::default(), question(2), 1);
        assert!(ahead.take(ModuleId(1), &[ObjAddr(2)]).is_some_and(|found| found.1.is_empty()));
    }

    #[test]
    fn packages_are_given_for_files_that_were_expected() {
        let dir = TempDir::new("ahead-packages");
        let lists = dir.path().join("var/lib/dpkg/info");
        std::fs::create_dir_all(&lists).unwrap();
        std::fs::write(lists.join("one.list"), "/usr/bin/one\n").unwrap();
        let search = Search { root: dir.path().to_owned(), ..Search::default() };
        let [one, other] = ["/usr/bin/one", "/usr/bin/other"].map(PathBuf::from);
        let mut ahead = Prefetch::default();
        assert_eq!(ahead.take_packages(std::slice::from_ref(&one)), None);
        ahead.begin_packages(&search, &[other.clone(), one.clone()]);
        assert_eq!(ahead.take_packages(std::slice::from_ref(&one)), Some(vec![Some("one-dbgsym".to_owned())]));
        ahead.begin_packages(&search, &[other]);
        assert_eq!(ahead.take_packages(&[one]), None);
    }
}
