# find_package(@name@ REQUIRED PATHS folder NO_DEFAULT_PATH)
# target_link_libraries(program @name@::@name@)          shared
# target_link_libraries(program @name@::@name@_static)   static

if(NOT TARGET @name@::@name@)
  add_library(@name@::@name@ SHARED IMPORTED)
  set_target_properties(@name@::@name@ PROPERTIES
    IMPORTED_LOCATION "${CMAKE_CURRENT_LIST_DIR}/lib@name@.so"
    INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}")
  add_library(@name@::@name@_static STATIC IMPORTED)
  set_target_properties(@name@::@name@_static PROPERTIES
    IMPORTED_LOCATION "${CMAKE_CURRENT_LIST_DIR}/lib@name@.a"
    INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}"
    INTERFACE_LINK_LIBRARIES "@cmake@")
endif()
