// about MODEL.bnn: prints a network's input and output, and its answer for a black image.
#include <algorithm>
#include <cstdint>
#include <exception>
#include <iostream>
#include <vector>

#include "ovsw.hpp"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: about MODEL.bnn\n";
    return 2;
  }
  try {
    ovsw::Model model(argv[1]);
    std::cout << model.channels() << "x" << model.height() << "x" << model.width() << " -> " << model.outputs()
              << ", numerics " << model.numerics() << ", isa " << model.isa() << "\n"
              << model.metadata() << "\n";
    const std::vector<std::uint8_t> black(model.channels() * model.height() * model.width());
    const std::vector<float> logits = model.run(black);
    const auto best = std::size_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
    const std::vector<std::string> labels = model.labels();
    std::cout << "black is: " << (labels.empty() ? "class " + std::to_string(best) : labels[best]) << "\n";
  } catch (const std::exception& e) {
    std::cerr << "about: " << e.what() << "\n";
    return 1;
  }
}
