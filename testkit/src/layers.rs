//! Enforces layers of modules, and that no modules use each other in a circle. The checks search the
//! sources for uses of `crate::` and `super::`.

mod circles;

use std::fs;
use std::path::{Path, PathBuf};

pub use circles::assert_no_circles;

/// Minimum number of uses. A smaller number shows that this check does not parse the sources
/// correctly.
const USES_MIN: usize = 150;

/// The permitted uses between the modules directly below a crate or a module.
#[derive(Debug)]
pub struct Layers<'a> {
    /// Layers from the bottom up. A module may use its own layer and the layers below.
    pub layers: &'a [&'a [&'a str]],
    /// Modules that may use all other modules.
    pub beside: &'a [&'a str],
    /// Names of test modules at any depth. These modules may also use all other modules.
    pub tests: &'a [&'a str],
}

impl Layers<'_> {
    /// Asserts that each module of the crate at `folder` has a layer, and uses no layer above its
    /// own.
    ///
    /// # Panics
    /// With all violations.
    pub fn assert(&self, folder: &str) {
        self.assert_of(&Path::new(folder).join("src"), "crate::");
    }

    /// Checks the modules below `module` of that crate in the same way.
    ///
    /// # Panics
    /// With all violations.
    pub fn assert_below(&self, folder: &str, module: &str) {
        let path = format!("crate::{module}::");
        self.assert_of(&Path::new(folder).join("src").join(module), &path);
    }

    fn assert_of(&self, root: &Path, path: &str) {
        let (wrong, uses) = self.wrong(root, path);
        assert!(uses > USES_MIN, "only {uses} uses were found");
        let wrong = wrong.join("\n");
        assert!(wrong.is_empty(), "violations of the layers:\n{wrong}");
    }

    /// The violations, and the number of uses that were found.
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
            // The path from this module to the root.
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

/// Words that some modules may not contain outside of comments and tests.
#[derive(Debug)]
pub struct Absent<'a> {
    /// Paths of modules below `src`, such as `steps/build`. A module includes its submodules.
    pub modules: &'a [&'a str],
    /// The words. A word may be a path, such as `Instant::now`.
    pub words: &'a [&'a str],
    /// Names of test modules at any depth. These modules may contain all words.
    pub tests: &'a [&'a str],
}

impl Absent<'_> {
    /// Asserts that the modules of the crate at `folder` do not contain the words.
    ///
    /// # Panics
    /// With all violations, and if a module does not exist.
    pub fn assert(&self, folder: &str) {
        let (wrong, missing) = self.wrong(&Path::new(folder).join("src"));
        assert!(missing.is_empty(), "modules without a file: {missing:?}");
        let wrong = wrong.join("\n");
        assert!(wrong.is_empty(), "forbidden words:\n{wrong}");
    }

    /// The violations, and the modules without a file.
    fn wrong(&self, root: &Path) -> (Vec<String>, Vec<&str>) {
        let (mut wrong, mut missing) = (Vec::new(), self.modules.to_vec());
        for file in sources(root) {
            let place = file.strip_prefix(root).unwrap().with_extension("");
            let is_test = |part: &&str| place.iter().any(|of| of.to_str() == Some(part));
            let own = self.modules.iter().find(|own| place.starts_with(own));
            let Some(own) = own.filter(|_| !self.tests.iter().any(is_test)) else {
                continue;
            };
            missing.retain(|missing| missing != own);
            let code = code(&fs::read_to_string(&file).unwrap());
            for (number, line) in code.lines().enumerate() {
                let words = self.words.iter().filter(|word| contains(line, word));
                let place = place.display();
                wrong.extend(words.map(|word| format!("{place}:{}: {word}", number + 1)));
            }
        }
        (wrong, missing)
    }
}

/// Whether `line` contains `word`, not only as a part of a longer word.
fn contains(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(index, _)| {
        let after = line[index + word.len()..].chars().next();
        let before = line[..index].chars().next_back();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
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

/// Returns the text of a file without comments and without the module of tests. The lines keep their
/// numbers.
fn code(text: &str) -> String {
    let is_tests = |line: &str| line.ends_with("mod tests {") && !line.starts_with(' ');
    let mut in_tests = false;
    let code_of = |line: &str| {
        in_tests |= is_tests(line);
        let code = match in_tests {
            true => "",
            false => line.split("//").next().unwrap_or_default(),
        };
        in_tests &= line != "}";
        code.to_owned() + "\n"
    };
    text.lines().map(code_of).collect()
}

/// The names directly after `path` in `code`, each with its line. For example, `use
/// crate::{caches::Cluster, labels}` has `caches` and `labels` after `crate::`.
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
        assert_eq!(code(text), "use crate::a; \n\n\n\n");
    }

    #[test]
    fn code_after_the_tests_is_read() {
        let text = "mod tests {\n    fn f() {\n    }\n}\nuse crate::a;\n";
        assert_eq!(code(text), "\n\n\n\nuse crate::a;\n");
    }

    #[test]
    fn a_forbidden_word_is_named_with_its_line() {
        let folder = std::env::temp_dir().join(format!("words-{}", std::process::id()));
        fs::create_dir_all(folder.join("steps/build")).unwrap();
        for (file, text) in [
            (
                "steps/build.rs",
                "use kube::{Api, Client};\nfn f(_: ApiServer) {}\n",
            ),
            (
                "steps/build/one.rs",
                "// Client\nlet now = Instant::now();\n",
            ),
            ("steps/builder.rs", "use kube::Client;\n"),
            ("steps/build/tests.rs", "use kube::Client;\n"),
        ] {
            fs::write(folder.join(file), text).unwrap();
        }
        let absent = Absent {
            modules: &["steps/build", "steps/gone"],
            words: &["Api", "Client", "Instant::now"],
            tests: &["tests"],
        };
        let (mut wrong, missing) = absent.wrong(&folder);
        wrong.sort();
        let expected = [
            "steps/build/one:2: Instant::now",
            "steps/build:1: Api",
            "steps/build:1: Client",
        ];
        assert_eq!(wrong, expected);
        assert_eq!(missing, ["steps/gone"]);
        fs::remove_dir_all(&folder).unwrap();
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
