// SPDX-License-Identifier: Apache-2.0
#include "cli/options/command.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <sstream>
#include <system_error>
#include <utility>

#include "trimtab/error.h"

namespace trimtab::cli {

namespace {

template <class Value>
bool parse(const std::string& text, Value& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::string plain(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

std::string is_given(const std::string& text) {
  return text.empty() ? "is empty" : "";
}

// CLI11 would take "-1" as a huge number, and what is too large as the largest.
std::string is_unsigned(const std::string& text) {
  uint64_t value = 0;
  return parse(text, value) ? "" : text + " is not a whole number from 0 to 2^64 - 1";
}

}  // namespace

Option& Option::type(const std::string& name) {
  option_->type_name(name);
  return *this;
}

Option& Option::required() {
  option_->required();
  return *this;
}

Option& Option::shows_default() {
  option_->capture_default_str();
  return *this;
}

Option& Option::checked(std::function<std::string(const std::string&)> check) {
  option_->check(
      CLI::Validator([check = std::move(check)](std::string& text) { return check(text); }, ""));
  return *this;
}

Option& Option::between(int64_t least, int64_t most) {
  return checked([=](const std::string& text) -> std::string {
    int64_t value = 0;
    if (parse(text, value) && value >= least && value <= most) return "";
    const bool is_open = most == std::numeric_limits<int64_t>::max();
    return text + " is not a whole number " +
           (is_open ? "of " + std::to_string(least) + " or more"
                    : "from " + std::to_string(least) + " to " + std::to_string(most));
  });
}

Option& Option::between_reals(double least, double most) {
  return checked([=](const std::string& text) -> std::string {
    double value = 0;
    // No NaN is between two numbers.
    if (parse(text, value) && value >= least && value <= most) return "";
    return text + " is not a number from " + plain(least) + " to " + plain(most);
  });
}

Option& Option::one_of(std::vector<std::string> names) {
  option_->check(CLI::IsMember(std::move(names)).description(""));
  return *this;
}

Option& Option::parsed_by(std::function<void(const std::string&)> parse) {
  return checked([parse = std::move(parse)](const std::string& text) -> std::string {
    try {
      parse(text);
      return "";
    } catch (const InvalidArgument& error) {
      return error.what();
    } catch (const UsageError& error) {
      return error.what();
    }
  });
}

Option& Option::needs(const Option& other) {
  option_->needs(other.option_);
  return *this;
}

Option& Option::excludes(const Option& other) {
  option_->excludes(other.option_);
  return *this;
}

Command Command::add(const std::string& name, const std::string& about) {
  return {*app_->add_subcommand(name, about), *chosen_};
}

void Command::footer(const std::string& text) {
  app_->footer(text);
}

void Command::runs(std::function<void()> body) {
  app_->require_subcommand(0, 1);
  app_->callback([app = app_, chosen = chosen_, body = std::move(body)] {
    if (app->get_subcommands().empty()) *chosen = body;
  });
}

Option Command::text(const std::string& name, std::string& value, const std::string& about) {
  return Option(app_->add_option(name, value, about)).checked(is_given);
}

Option Command::number(const std::string& name, int& value, const std::string& about) {
  return Option(app_->add_option(name, value, about)).type("N");
}

Option Command::number(const std::string& name, int64_t& value, const std::string& about) {
  return Option(app_->add_option(name, value, about)).type("N");
}

Option Command::number(const std::string& name, uint64_t& value, const std::string& about) {
  return Option(app_->add_option(name, value, about)).type("N").checked(is_unsigned);
}

Option Command::number(const std::string& name, float& value, const std::string& about) {
  return Option(app_->add_option(name, value, about));
}

Option Command::number(const std::string& name, double& value, const std::string& about) {
  return Option(app_->add_option(name, value, about));
}

Option Command::number(const std::string& name, std::optional<double>& value,
                       const std::string& about) {
  return Option(app_->add_option(name, value, about));
}

Option Command::flag(const std::string& name, bool& value, const std::string& about) {
  return Option(app_->add_flag(name, value, about));
}

Option Command::negative_flag(const std::string& name, bool& value, const std::string& about) {
  return Option(app_->add_flag_callback(name, [&value] { value = false; }, about));
}

Option Command::texts(const std::string& name, std::vector<std::string>& values,
                      const std::string& about) {
  return Option(app_->add_option(name, values, about)).checked(is_given);
}

Option Command::repeated(const std::string& name, std::vector<std::string>& values,
                         const std::string& about) {
  return Option(app_->add_option(name, values, about)->allow_extra_args(false)).checked(is_given);
}

Option Command::list(const std::string& name, std::vector<std::string>& values,
                     const std::string& about) {
  return Option(app_->add_option(name, values, about)->delimiter(','));
}

Option Command::list(const std::string& name, std::vector<int64_t>& values,
                     const std::string& about) {
  return Option(app_->add_option(name, values, about)->delimiter(','));
}

bool Command::given(const std::string& name) const {
  return app_->count(name) > 0;
}

CommandLine read_command_line(int argc, const char* const* argv, const std::string& about,
                              const std::string& version,
                              const std::function<void(Command&)>& describe) {
  CommandLine line;
  line.parsed = std::make_shared<CLI::App>(about, "trimtab");
  CLI::App& app = *line.parsed;
  app.set_version_flag("--version", version);
  std::function<void()> body;
  Command program(app, body);
  describe(program);
  app.require_subcommand(0, 1);
  const auto named = [&app] {
    const auto commands = app.get_subcommands();  // those on the command line
    return commands.empty() ? std::string() : commands[0]->get_name();
  };
  try {
    app.parse(argc, argv);
    line.command = named();
    line.body = body;
    if (line.command.empty()) line.help = app.help();
  } catch (const CLI::ParseError& error) {
    line.command = named();
    if (error.get_exit_code() == 0) {
      std::ostringstream text;
      app.exit(error, text, text);
      line.help = text.str();
    } else if (line.command.empty() && argc > 1 && argv[1][0] != '-') {
      // CLI11 would only say that a command is missing.
      line.wrong = std::string("there is no command ") + argv[1];
    } else {
      line.wrong = error.what();
    }
  }
  return line;
}

}  // namespace trimtab::cli
