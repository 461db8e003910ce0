# libovsw: the objects of all levels behind include/ovsw.h, its package files, tests and examples.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

option(BUILD_SHARED_LIBS "Build a shared library" ON)
option(OVSW_CLI "Build ovsw-classify, which classifies pictures on the command line" ON)
option(OVSW_EXAMPLES "Build the examples" OFF)

file(STRINGS include/ovsw.h api_line REGEX "#define OVSW_API_VERSION [0-9]+")
string(REGEX MATCH "[0-9]+" api_version "${api_line}")

target_compile_definitions(ovsw_c_api PRIVATE OVSW_VERSION="${OVSW_VERSION}")

# The levels are static libraries for the tests' sake; here their objects are taken as they are, so that a static
# libovsw is complete, too. Kernel tables are sources of ovsw_kernels.
add_library(ovsw)
add_library(ovsw::ovsw ALIAS ovsw)
foreach(level base format graph plan runtime c_api kernels)
  target_sources(ovsw PRIVATE $<TARGET_OBJECTS:ovsw_${level}>)
endforeach()
get_target_property(tables ovsw_kernels SOURCES)
list(FILTER tables INCLUDE REGEX TARGET_OBJECTS)
target_sources(ovsw PRIVATE ${tables})
target_link_libraries(ovsw PRIVATE Threads::Threads)
target_link_options(ovsw PRIVATE $<TARGET_PROPERTY:ovsw_flags,INTERFACE_LINK_OPTIONS>)
target_include_directories(ovsw INTERFACE $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
                                          $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
set_target_properties(ovsw PROPERTIES LINKER_LANGUAGE CXX VERSION ${OVSW_VERSION} SOVERSION ${api_version})

# Nothing but ovsw_* is exported, not even the templates of the standard library.
if(APPLE)
  target_link_options(ovsw PRIVATE -Wl,-exported_symbol,_ovsw_*)
else()
  set(exports ${CMAKE_CURRENT_SOURCE_DIR}/csrc/c_api/exports.map)
  target_link_options(ovsw PRIVATE -Wl,--version-script=${exports} -Wl,--gc-sections)
  set_target_properties(ovsw PROPERTIES LINK_DEPENDS ${exports})
endif()

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/ovsw)
install(TARGETS ovsw EXPORT ovsw)
install(FILES include/ovsw.h include/ovsw.hpp TYPE INCLUDE)
install(EXPORT ovsw FILE ovswTargets.cmake NAMESPACE ovsw:: DESTINATION ${package})
configure_package_config_file(cmake/ovswConfig.cmake.in ovswConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(ovswConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH OVSW_PC_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/ovsw.pc.in ovsw.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/ovswConfig.cmake ${PROJECT_BINARY_DIR}/ovswConfigVersion.cmake
        DESTINATION ${package})
install(FILES ${PROJECT_BINARY_DIR}/ovsw.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(OVSW_CLI)
  add_executable(ovsw-classify csrc/cli/classify.cc csrc/cli/picture.cc csrc/cli/scale.cc)
  target_link_libraries(ovsw-classify PRIVATE ovsw::ovsw ovsw_base)
  if(BUILD_SHARED_LIBS)  # it finds the library that is installed with it, wherever both are moved
    file(RELATIVE_PATH to_library ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
    set(origin $<IF:$<BOOL:${APPLE}>,@loader_path,$ORIGIN>)
    set_target_properties(ovsw-classify PROPERTIES INSTALL_RPATH ${origin}/${to_library})
  endif()
  install(TARGETS ovsw-classify)
endif()

include(CTest)
if(OVSW_EXAMPLES)
  add_subdirectory(examples/c)
  add_subdirectory(examples/cpp)
  target_link_libraries(classify PRIVATE ovsw_flags)  # here the examples get our warnings and sanitizers, too
  target_link_libraries(about PRIVATE ovsw_flags)
endif()
if(BUILD_TESTING)
  add_subdirectory(tests/cpp)
  add_subdirectory(tests/fuzz)
endif()
