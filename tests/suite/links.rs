//! Documents lead to what is there: each relative link and anchor resolves, and each file that a document or a comment
//! cites is in the tree.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files of the tree, new ones too, as git knows them, and their folders.
fn tree() -> BTreeSet<PathBuf> {
    let listed = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(listed).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files = String::from_utf8(output.stdout).unwrap();
    let files = files.lines().map(PathBuf::from).filter(|file| root().join(file).exists());
    files.flat_map(|file| file.ancestors().map(Path::to_owned).collect::<Vec<_>>()).collect()
}

/// Documents, by their paths.
fn documents(tree: &BTreeSet<PathBuf>) -> BTreeMap<&Path, String> {
    let pages = tree.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.map(|path| (path.as_path(), std::fs::read_to_string(root().join(path)).unwrap())).collect()
}

/// Drops `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// The lines of a page that are no code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_fenced = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fence && !is_fenced && !line.starts_with("    ")
    })
}

/// The anchors that GitHub makes of the headings of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in prose(text).filter(|line| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        let name: String = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect();
        let again = (1..).map(|number| format!("{name}-{number}"));
        let free = std::iter::once(name.clone()).chain(again).find(|name| !anchors.contains(name));
        anchors.extend(free);
    }
    anchors
}

/// Where the links of a page lead.
fn links(text: &str) -> Vec<String> {
    let text: String = prose(text).map(|line| format!("{line}\n")).collect();
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://")).map(str::to_owned).collect()
}

/// Of the links of a page: those that lead nowhere.
fn broken(page: &Path, text: &str, tree: &BTreeSet<PathBuf>, pages: &BTreeMap<&Path, String>) -> Vec<String> {
    let is_broken = |link: &String| {
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target =
            if file.is_empty() { page.to_owned() } else { plain(&page.parent().unwrap_or(Path::new("")).join(file)) };
        let has_anchor = || pages.get(target.as_path()).is_some_and(|text| anchors(text).contains(anchor));
        !tree.contains(&target) || (!anchor.is_empty() && !has_anchor())
    };
    links(text).into_iter().filter(is_broken).collect()
}

/// What other projects' files are called.
const OF_OTHERS: [&str; 2] = ["Objects/locations.md", "src/profile-logic/import/dhat.js"];

/// The names of source files and documents in a text. (NAME.rs is none, nor is Node.js.)
fn cited(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '/' | '-' | '@' | '*' | '%' | '~');
    let words = text.split(move |c: char| !is_part(c)).map(|word| word.trim_end_matches('.'));
    words.filter(|word| !OF_OTHERS.contains(word)).filter(|word| {
        let extension = Path::new(word).extension().and_then(|extension| extension.to_str()).unwrap_or("");
        let is_proper = word.starts_with(|c: char| c.is_uppercase());
        let is_name = match extension {
            "md" => word.contains('/') || is_proper,
            "rs" | "s" | "js" | "mjs" | "proto" => word.contains('/') || !is_proper,
            _ => false,
        };
        is_name && !word.contains(['*', '%', '~']) && !word.contains("NAME.") && !word.starts_with(['.', '/'])
    })
}

/// Whether the tree has a file of this name, or with this end of its path: texts leave out the folders that are clear.
fn is_there(name: &str, tree: &BTreeSet<PathBuf>) -> bool {
    tree.iter().any(|path| path.ends_with(name))
}

#[test]
fn links_and_anchors_of_documents_resolve() {
    let tree = tree();
    let pages = documents(&tree);
    assert!(pages.len() > 20, "{pages:?}");
    let wrong = pages.iter().flat_map(|(page, text)| {
        broken(page, text, &tree, &pages).into_iter().map(|link| format!("{}: {link}", page.display()))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Every page is reached from README, link by link.
#[test]
fn each_page_can_be_found() {
    let tree = tree();
    let pages = documents(&tree);
    let mut found = BTreeSet::new();
    let mut next = vec![PathBuf::from("README.md")];
    while let Some(page) = next.pop() {
        let Some(text) = pages.get(page.as_path()).filter(|_| !found.contains(&page)) else { continue };
        let folder = page.parent().unwrap_or(Path::new(""));
        let files = links(text).into_iter().filter_map(|link| link.split('#').next().map(|file| folder.join(file)));
        next.extend(files.map(|file| plain(&file)));
        found.insert(page);
    }
    let lost = pages.keys().filter(|page| page.starts_with("docs") && !found.contains(**page)).collect::<Vec<_>>();
    assert!(lost.is_empty(), "{lost:?}");
}

#[test]
fn files_that_texts_cite_are_in_the_tree() {
    let tree = tree();
    let mut wrong = Vec::new();
    for (page, text) in documents(&tree) {
        wrong.extend(
            cited(&text).filter(|name| !is_there(name, &tree)).map(|name| format!("{}: {name}", page.display())),
        );
    }
    let is_source = |path: &&PathBuf| {
        ["src", "crates", "tests/suite", "tests/support", "benches", "examples"]
            .iter()
            .any(|folder| path.starts_with(folder))
            && path.extension().is_some_and(|end| end == "rs")
    };
    let sources = tree.iter().filter(is_source);
    let mut comments = 0;
    for path in sources {
        let text = std::fs::read_to_string(root().join(path)).unwrap();
        for comment in text.lines().filter_map(|line| line.trim_start().strip_prefix("//")) {
            comments += 1;
            let missing = cited(comment).filter(|name| !is_there(name, &tree));
            wrong.extend(missing.map(|name| format!("{}: {name}", path.display())));
        }
    }
    assert!(comments > 1000, "{comments}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The code map of ARCHITECTURE names each module at the top of src.
#[test]
fn the_code_map_names_each_module() {
    let map = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let tree = tree();
    let modules =
        tree.iter().filter_map(|path| path.strip_prefix("src").ok()).filter(|path| path.components().count() == 1);
    let modules = modules.filter_map(|path| path.file_name()?.to_str()?.strip_suffix(".rs"));
    let missing: Vec<&str> = modules.filter(|module| !map.contains(&format!("`{module}"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn what_leads_nowhere_is_found() {
    let page = Path::new("docs/a.md");
    let text = "# One\n\n## `--two` of \"three\", 4\n\n## One\n```\n# none [x](y)\n```\n[b](b.md#c) [one](#one-1) [up](../src/e.rs) [two](#--two-of-three-4)";
    let tree: BTreeSet<PathBuf> = ["docs/a.md", "docs/b.md", "src/e.rs", "src/f/g.rs"].map(PathBuf::from).into();
    let pages: BTreeMap<&Path, String> = [(page, text.to_owned()), (Path::new("docs/b.md"), "## C".to_owned())].into();
    assert!(broken(page, text, &tree, &pages).is_empty());
    for link in ["c.md", "b.md#d", "#none", "#two", "e.rs", "../../docs/b.md/x"] {
        assert_eq!(broken(page, &format!("[x]({link})"), &tree, &pages), [link]);
    }
    let names = cited("`f/g.rs`, docs/b.md. x.md -o *.md a/x.json e.rs (/etc/x.rs) README.md, Node.js, src/NAME.rs")
        .collect::<Vec<_>>();
    assert_eq!(names, ["f/g.rs", "docs/b.md", "e.rs", "README.md"]);
    assert!(["f/g.rs", "src/f/g.rs", "g.rs", "b.md"].iter().all(|name| is_there(name, &tree)));
    assert!(["f/h.rs", "x/e.rs", "h.rs", "docs/c.md"].iter().all(|name| !is_there(name, &tree)));
}
