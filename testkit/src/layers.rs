//! Layers of modules that a test enforces, by the uses of `crate::` and `super::` in their sources.

use std::fs;
use std::path::{Path, PathBuf};

/// Fewer uses than this are a sign that the sources are not read as they are written.
const USES_MIN: usize = 150;

/// What may use what, of the modules directly below one, which is the crate itself or a module of it.
#[derive(Debug)]
pub struct Layers<'a> {
    /// From the ground up: each module uses its own layer and those below it.
    pub layers: &'a [&'a [&'a str]],
    /// Modules that use whatever they like.
    pub beside: &'a [&'a str],
    /// Names of modules that hold tests alone, wherever they are; these use whatever they like, too.
    pub tests: &'a [&'a str],
}

impl Layers<'_> {
    /// Fails where a module of the crate at `folder` has no layer, or uses one above its own.
    ///
    /// # Panics
    /// With all that is wrong.
    pub fn assert(&self, folder: &str) {
        self.assert_of(&Path::new(folder).join("src"), "crate::");
    }

    /// The same of the modules below `module` of that crate.
    ///
    /// # Panics
    /// As above.
    pub fn assert_below(&self, folder: &str, module: &str) {
        let path = format!("crate::{module}::");
        self.assert_of(&Path::new(folder).join("src").join(module), &path);
    }

    fn assert_of(&self, root: &Path, path: &str) {
        let (wrong, uses) = self.wrong(root, path);
        assert!(uses > USES_MIN, "only {uses} uses are seen");
        let wrong = wrong.join("\n");
        assert!(wrong.is_empty(), "against the layers:\n{wrong}");
    }

    /// What is against the layers, and how many uses were seen.
    fn wrong(&self, root: &Path, path: &str) -> (Vec<String>, usize) {
        let (mut wrong, mut uses) = (Vec::new(), 0);
        for file in sources(root) {
            let place = file.strip_prefix(root).unwrap();
            let parts: Vec<_> = place
                .iter()
                .map(|part| part.to_str().unwrap().trim_end_matches(".rs"))
                .collect();
            let place = place.display();
            if self.beside.contains(&parts[0]) {
                continue;
            }
            let Some(own) = self.layer_of(parts[0]) else {
                wrong.push(format!("{place}: has no layer"));
                continue;
            };
            if parts.iter().any(|part| self.tests.contains(part)) {
                continue;
            }
            let code = code(&fs::read_to_string(&file).unwrap());
            // How the root is named from here.
            let above = "super::".repeat(parts.len());
            for (line, name) in [path, &above].iter().flat_map(|path| named(&code, path)) {
                uses += 1;
                if self.layer_of(name).is_none_or(|layer| layer > own) {
                    wrong.push(format!("{place}:{line}: {} uses {path}{name}", parts[0]));
                }
            }
        }
        (wrong, uses)
    }

    fn layer_of(&self, module: &str) -> Option<usize> {
        let mut layers = self.layers.iter();
        layers.position(|layer| layer.contains(&module))
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false => vec![path],
        })
        .collect()
}

/// A file without its tests, which are its last item, and without comments.
fn code(text: &str) -> String {
    let is_tests = |line: &str| line.ends_with("mod tests {") && !line.starts_with(' ');
    let lines = text.lines().take_while(|line| !is_tests(line));
    lines
        .map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n")
        .collect()
}

/// What `code` names directly behind `path`, each with its line: `use crate::{caches::Cluster, labels}` names `caches` and
/// `labels` behind `crate::`.
fn named<'a>(code: &'a str, path: &str) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    for (index, _) in code.match_indices(path) {
        let rest = &code[index + path.len()..];
        let line = code[..index].matches('\n').count() + 1;
        let Some(group) = rest.strip_prefix('{') else {
            found.push((line, name(rest)));
            continue;
        };
        let mut depth = 1;
        found.push((line, name(group)));
        for (index, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => found.push((line, name(&group[index + 1..]))),
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    found.retain(|(_, name)| !name.is_empty());
    found
}

fn name(text: &str) -> &str {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_alone_and_in_groups() {
        let code = "use crate::caches::{Cache, Cluster};\nuse crate::{\n    apply::{a, b},\n    labels,\n};\n\
                    fn f() -> crate::E {}";
        let found = [(1, "caches"), (2, "apply"), (2, "labels"), (6, "E")];
        assert_eq!(named(code, "crate::"), found);
    }

    #[test]
    fn comments_and_tests_are_no_uses() {
        let text = "use crate::a; // crate::b\npub(crate) mod tests {\n use crate::c;\n}\n";
        assert_eq!(code(text), "use crate::a; \n");
    }

    #[test]
    fn what_is_against_the_layers_is_named_with_its_line() {
        let folder = std::env::temp_dir().join(format!("layers-{}", std::process::id()));
        fs::create_dir_all(folder.join("a")).unwrap();
        for (file, text) in [
            ("a.rs", "\nuse crate::b;\n"),
            ("a/one.rs", "use super::two;\nuse super::super::b;\n"),
            ("b.rs", "use crate::a;\n"),
            ("c.rs", ""),
            ("main.rs", "use crate::c;\n"),
        ] {
            fs::write(folder.join(file), text).unwrap();
        }
        let layers = Layers {
            layers: &[&["a"], &["b"]],
            beside: &["main"],
            tests: &[],
        };
        let (mut wrong, uses) = layers.wrong(&folder, "crate::");
        wrong.sort();
        let expected = [
            "a.rs:2: a uses crate::b",
            "a/one.rs:2: a uses crate::b",
            "c.rs: has no layer",
        ];
        assert_eq!((wrong, uses), (expected.map(str::to_owned).to_vec(), 3));
        fs::remove_dir_all(&folder).unwrap();
    }
}
